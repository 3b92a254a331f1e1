import fc from 'fast-check';
import { beforeAll, expect, test } from 'vitest';
import { claimResume } from '../shared/ledger/commands.js';
import { control, drain, submit } from './support/desk.js';
import { answer, ask, asking, inputsOf, runOut } from './support/input.js';
import type { LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: in whatever order asking, answers, expiry, commands, crashes and takeovers meet a question, it is one wait with
// one end, and the model reads one result that says what that end was. Method: random orders against the ledger.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

const ACTS = [
  'ask',
  'ask',
  'answer',
  'answer',
  'expire',
  'pause',
  'resume',
  'cancel',
  'safe_point',
  'take_over',
] as const;
type Act = (typeof ACTS)[number];

test('a question has one wait, one end and one result, in any order of what can meet it', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.constantFrom<Act>(...ACTS), { minLength: 4, maxLength: 16 }),
      fc.constantFrom('tell_model' as const, 'fail' as const),
      async (order, onExpiry) => {
        let run = await ledger.newStep([asking('Which?', { onExpiry })]);
        const taken: string[] = [];
        for (const [n, act] of order.entries()) {
          const { ended_at } = await ledger.runRow(run.runId);
          if (act !== 'take_over') await play(run, act, `ORD-${n}`, taken);
          else if (ended_at === null) run = await run.takenOver();
          await check(run, taken);
        }
      },
    ),
    { numRuns: 60 },
  );
}, 30_000);

async function play(
  run: LedgerRun,
  act: Exclude<Act, 'take_over'>,
  order: string,
  taken: string[],
): Promise<void> {
  const row = await ledger.runRow(run.runId);
  const [wait] = await inputsOf(run);
  switch (act) {
    case 'ask':
      await ask(run);
      return;
    case 'answer': {
      if (wait === undefined) return;
      const said = await answer({ run, interruptId: wait.interrupt_id }, { answer: { order } });
      if (said.kind === 'decided') taken.push(order);
      return;
    }
    case 'expire':
      if (wait?.state === 'open') await runOut({ run, interruptId: wait.interrupt_id });
      return;
    case 'pause':
    case 'resume':
    case 'cancel':
      await submit(run, act);
      return;
    case 'safe_point':
      if (row.control === 'pause_requested') await drain(run);
      else if (row.control === 'resume_requested') await claimResume(ledger.db, run, run.trail());
      else if (row.control === 'cancel_requested' && row.state === 'running') {
        await run.commit(
          { kind: 'move', to: 'waiting_for_input', reason: 'input_needed' },
          control('active', 'cancel_requested'),
          { kind: 'move', to: 'cancelled', reason: 'cancel_requested' },
        );
      }
  }
}

/** What holds at every moment. */
async function check(run: LedgerRun, taken: readonly string[]): Promise<void> {
  const waits = await inputsOf(run);
  expect(waits.length).toBeLessThanOrEqual(1);
  expect(taken.length).toBeLessThanOrEqual(1);
  const [wait] = waits;
  const results = (await ledger.messages(run.runId)).filter(({ role }) => role === 'tool');
  expect(results.length).toBeLessThanOrEqual(1);
  expect(await ledger.effects(run.runId)).toStrictEqual([]);
  if (wait === undefined) return;
  const { state, ended_at } = await ledger.runRow(run.runId);
  expect(wait.state === 'answered').toBe(taken.length === 1);
  if (ended_at !== null) expect([state, wait.state === 'open']).toStrictEqual(['cancelled', false]);
  if (results[0] === undefined) return;
  expect(['answered', 'expired']).toContain(wait.state);
  expect(results[0].content).toMatchObject(
    wait.state === 'answered'
      ? { isError: false, text: `{"order":"${taken[0]}"}` }
      : { isError: true, text: expect.stringContaining('no_answer') as unknown },
  );
}
