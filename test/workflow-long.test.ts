import { createHash } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { defineTool } from '../activities/tools/define-tool.js';
import { SEARCH_ATTRIBUTES } from '../shared/domain/protocol.js';
import { checkRun } from './support/run-checks.js';
import { DONE, reply, when } from './support/scripts.js';
import { startWorld, type World } from './support/world.js';

// Goal: a long run costs a step what a short one does, in Temporal and in Postgres, and no limit of either stops it.
// Method: two runs, one twice as long as the other, with results of 5 KB, each in a database of its own.

const HISTORY_EVENTS_MAX = 300;

const fetchReport = defineTool({
  name: 'fetch_report',
  description: 'Fetches a report of 5 KB.',
  input: { type: 'object', properties: { note: { type: 'string' } } },
  effect: { class: 'read' },
  run: (_, { effectId }) => reportOf(effectId),
});

/** Text that does not shrink when it is packed. */
function reportOf(effectId: string): string {
  const pieces = Array.from({ length: 80 }, (_, n) =>
    createHash('sha256').update(`${effectId} ${n}`).digest('hex'),
  );
  return pieces.join('').slice(0, 5_000);
}

interface LongRun {
  readonly turns: number;
  readonly world: World;
  readonly runId: string;
  /** What the run added to the database, its indexes included. */
  readonly postgresBytes: number;
  /** Of each execution of the run's workflow, oldest first. */
  readonly executions: readonly {
    readonly events: number;
    readonly bytes: number;
    readonly tenant: unknown;
  }[];
}

let half: LongRun;
let whole: LongRun;

beforeAll(async () => {
  [half, whole] = await Promise.all([runTurns(75), runTurns(150)]);
}, 120_000);

async function runTurns(turns: number): Promise<LongRun> {
  const world = await startWorld({
    tools: [fetchReport],
    historyEventsMax: HISTORY_EVENTS_MAX,
    script: {
      scenarios: [when('turns', ...Array.from({ length: turns }, () => reply('fetch_report')), DONE)],
    },
  });
  const empty = await ledgerBytes(world);
  const runId = await world.run({ input: 'turns' });
  await world.waitFor(runId, 'ended', 110_000);
  await world.client.workflow.getHandle(runId).result();
  const owners = await world.rows<{ execution: string }>(
    'select execution from holdfast.run_executions where run_id = $1 order by epoch',
    runId,
  );
  const executions = await Promise.all(
    owners.map(async ({ execution }) => {
      const seen = await world.client.workflow.getHandle(runId, execution).describe();
      const tenant = seen.typedSearchAttributes
        .getAll()
        .find(({ key }) => key.name === SEARCH_ATTRIBUTES.tenant)?.value;
      return { events: seen.historyLength, bytes: seen.historySize ?? 0, tenant };
    }),
  );
  return { turns, world, runId, postgresBytes: (await ledgerBytes(world)) - empty, executions };
}

async function ledgerBytes(world: World): Promise<number> {
  const [row] = await world.rows<{ bytes: number }>(
    `select sum(pg_total_relation_size(c.oid))::float as bytes
       from pg_class c where relkind = 'r' and relnamespace = 'holdfast'::regnamespace`,
  );
  return row?.bytes ?? 0;
}

const historyBytes = ({ executions }: LongRun) => executions.reduce((sum, { bytes }) => sum + bytes, 0);

describe('case 68: 150 turns with results of 5 KB', () => {
  test('complete, over several executions, each far from the limit of a history', async () => {
    expect(await whole.world.runRow(whole.runId)).toMatchObject({ state: 'completed' });
    expect(whole.executions.length).toBeGreaterThan(2);
    for (const { events, bytes } of whole.executions) {
      expect(events).toBeLessThan(HISTORY_EVENTS_MAX + 50);
      expect(bytes).toBeLessThan(1_000_000);
    }
  });

  test('lose nothing and repeat nothing where one execution hands over to the next', async () => {
    const { world, runId, turns } = whole;
    expect(await world.runRow(runId)).toMatchObject({
      epoch: whole.executions.length,
      model_calls: turns + 1,
      model_attempts: turns + 1,
      tool_calls: turns,
    });
    const effects = await world.effects(runId);
    expect(effects).toHaveLength(turns);
    expect(effects.every(({ state, attempts }) => state === 'succeeded' && attempts === 1)).toBe(true);
    expect(await world.messages(runId)).toHaveLength(1 + turns + 1 + turns);
    const grants = await world.rows<{ epoch: number; reason: string }>(
      'select epoch, reason from holdfast.run_executions where run_id = $1 order by epoch',
      runId,
    );
    expect(grants).toEqual(
      grants.map((_, index) => ({ epoch: index + 1, reason: index === 0 ? 'start' : 'continued' })),
    );
    await checkRun(world, runId);
  });

  test('are found by operators under the attributes that the run began with', () => {
    expect(whole.executions.map(({ tenant }) => tenant)).toEqual(whole.executions.map(() => 'default'));
  });

  test('take history in a straight line: twice the turns, twice the bytes, and no step grows', () => {
    expect(historyBytes(whole) / historyBytes(half)).toBeGreaterThan(1.8);
    expect(historyBytes(whole) / historyBytes(half)).toBeLessThan(2.2);
    const full = whole.executions.slice(0, -1).map(({ bytes, events }) => bytes / events);
    expect(Math.max(...full) / Math.min(...full)).toBeLessThan(1.1);
    // Ids and enums, not a word of the 5 KB.
    expect(historyBytes(whole) / whole.turns).toBeLessThan(3 * 1024);
  });
});

test('case 70: Postgres too grows with the turns, not with their square', () => {
  expect(whole.postgresBytes / half.postgresBytes).toBeGreaterThan(1.7);
  expect(whole.postgresBytes / half.postgresBytes).toBeLessThan(2.3);
});

test('a step that fills a history by itself is finished, and not begun again for ever', async () => {
  const crowd = reply(...Array.from({ length: 16 }, () => 'look'));
  const world = await startWorld({
    historyEventsMax: 50,
    script: { scenarios: [when('crowds', crowd, crowd, crowd, DONE)] },
  });
  const runId = await world.run({ input: 'crowds' });
  expect(await world.waitFor(runId, 'ended')).toMatchObject({ state: 'completed', tool_calls: 48 });
  expect((await world.runRow(runId)).epoch).toBeGreaterThan(1);
  await checkRun(world, runId);
});
