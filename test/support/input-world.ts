import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import type { JsonValue } from '../../shared/domain/json.js';
import { answerInput, type NewAnswer } from '../../shared/ledger/questions.js';
import { tell } from './desk-world.js';
import type { InputRow } from './input.js';
import type { World } from './world.js';

/** A question for a world's project; its answer is an object with a text `order`. */
export function asks(changes: Readonly<Record<string, unknown>> = {}): Readonly<Record<string, unknown>> {
  return {
    description: 'Asks the desk which order is meant.',
    answer: {
      type: 'object',
      required: ['order'],
      additionalProperties: false,
      properties: { order: { type: 'string', maxLength: 40 } },
    },
    role: 'operator',
    expiresSeconds: 3_600,
    ...changes,
  };
}

/** The run's waits for input, in call order, the oldest first. */
export async function inputs(world: World, runId: string): Promise<InputRow[]> {
  return await world.rows<InputRow>(
    `select * from holdfast.interrupts where run_id = $1 and kind = 'input' order by step, slot, created_at`,
    runId,
  );
}

/** Waits until so many inputs of the run are open, and it rests on them. */
export async function untilAsked(world: World, runId: string, count = 1): Promise<InputRow[]> {
  await world.waitFor(runId, async ({ state }) => state === 'waiting_for_input');
  const open = (await inputs(world, runId)).filter(({ state }) => state === 'open');
  expect(open).toHaveLength(count);
  return open;
}

/** An operator's answer to a wait, that fits; the run's workflow is told. @returns what became of it, in a word */
export async function answer(
  world: World,
  wait: Pick<InputRow, 'interrupt_id' | 'run_id'> | undefined,
  value: JsonValue,
  changes: Partial<NewAnswer> = {},
): Promise<string> {
  if (wait === undefined) throw new Error('nobody is waited for');
  const said = await answerInput(world.db, {
    ...{ tenantId: 'default', interruptId: wait.interrupt_id, actorId: 'user:olga', authority: 'operator' },
    ...{ answer: value, fits: true, note: '' },
    ...{ endpoint: `POST /v1/interrupts/${wait.interrupt_id}/resolve`, idempotencyKey: randomUUID() },
    ...changes,
  });
  await tell(world, wait.run_id);
  return said.kind === 'refused' ? said.code : said.kind;
}
