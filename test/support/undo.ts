import { keyOf, type World } from './world.js';

const query = { settlingSeconds: 0.2, equalAnswers: 2, intervalSeconds: 0.1, queriesMax: 10 };
const probe = {
  url: '/queryable/{$key}',
  reference: '/id',
  answers: [
    { status: 200, outcome: 'found' },
    { status: 404, outcome: 'absent' },
  ],
};
const patient = { timeoutSeconds: 60 };

/** `pay` is undone by `unpay`, by a rule; `book` by `unbook`, with its own arguments; `mail` by nobody. */
export const UNDO_TOOLS: Readonly<Record<string, Readonly<Record<string, unknown>>>> = {
  pay: {
    ...patient,
    compensation: { tool: 'unpay', arguments: { note: 'undo {$reference} of {$key}' } },
  },
  book: { ...patient, compensation: 'unbook' },
  mail: patient,
  unpay: {
    ...{ description: 'Pays back.', class: 'keyed', url: '/keyed', ...patient },
    keyed: { windowSeconds: 3_600, resendsMax: 3 },
  },
  unbook: { description: 'Cancels.', class: 'queryable', url: '/queryable', query, probe, ...patient },
  // Its answer names nothing, so a rule that needs the name cannot be followed.
  plain: {
    ...{ description: 'Pays.', class: 'opaque', url: '/opaque', reference: '/nowhere' },
    compensation: { tool: 'unpay', arguments: { note: '{$reference}' } },
  },
};

/** The key of the compensation of a call. */
export function undoKeyOf(
  runId: string,
  place: { step?: number; slot?: number; redo?: number } = {},
): string {
  const { redo = 0, ...at } = place;
  return `${keyOf(runId, at)}:undo${redo > 0 ? `:r${redo}` : ''}`;
}

/** The run's compensations as they were intended: what, what became of it, and the key of what it undoes. */
export async function undosOf(
  world: World,
  runId: string,
): Promise<{ tool: string; state: string; of: string }[]> {
  return await world.rows(
    `select c.tool, c.state, e.idempotency_key as of from holdfast.effects c
       join holdfast.effects e on e.effect_id = c.compensates
      where c.run_id = $1 order by c.created_at, c.redo`,
    runId,
  );
}
