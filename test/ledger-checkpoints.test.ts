import { beforeAll, describe, expect, test } from 'vitest';
import { claimResume } from '../shared/ledger/commands.js';
import type { CheckpointRecord } from '../shared/ledger/reads/read-checkpoints.js';
import { readCheckpoint } from '../shared/ledger/reads/read-checkpoints.js';
import { decide, drain, openGate, submit } from './support/desk.js';
import { askFork, checkpointAt, checkpointsOf } from './support/forks.js';
import { callOf, type LedgerRun } from './support/ledger-run.js';
import { newId } from '../shared/ledger/new-id.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: a checkpoint stands at every boundary, says what the ledger held there, and says the same ever after (SPEC 4.2).
// Method: read a run's checkpoints after every commit and at its end; spoil rows as only a superuser can.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

/** Where it stands, in a line. */
const lineOf = ({ boundary, phase, epoch, open, unknown_effects, ...c }: CheckpointRecord): string =>
  [
    ...[boundary, phase.state, phase.control, `e${epoch}`, `s${c.step}`, `m${c.messages.count}`],
    ...[`after ${c.resumes_after_step}`, ...open.effects.map(({ tool, state }) => `${tool} ${state}`)],
    ...[...open.interrupts.map(({ kind }) => kind), ...(open.model_call ? ['model'] : [])],
    ...(unknown_effects.length > 0 ? [`${unknown_effects.length} unknown`] : []),
  ].join(' · ');

/** A run that meets every boundary there is; `look` is called after each of its commits. */
async function eventful(look: (run: LedgerRun) => Promise<void>): Promise<LedgerRun> {
  const run = await ledger.newRun();
  const then = async (act: unknown): Promise<void> => {
    await act;
    await look(run);
  };
  await then(run.start());
  await then(run.plan([callOf('keyed'), callOf('opaque', { approval: 'required' })]));
  await then(run.call(0).attempt('unknown'));
  const gate = await openGate(run.call(1));
  await then(decide(gate));
  await then(run.call(1).attempt('succeeded'));
  await then(run.call(0).attempt('succeeded'));
  await then(submit(run, 'pause'));
  await then(drain(run));
  await then(submit(run, 'change_deadline'));
  await then(submit(run, 'resume'));
  await then(claimResume(ledger.db, run, run.trail()));
  await then(run.plan([]));
  await then(run.commit({ kind: 'move', to: 'completed', reason: 'answer_final' }));
  return run;
}

describe('a checkpoint', () => {
  test('stands at every boundary, with what was open there and how far the run was whole', async () => {
    const run = await eventful(() => Promise.resolve());
    const checkpoints = await checkpointsOf(run);
    expect(checkpoints.map(lineOf)).toStrictEqual([
      'run_created · admitted · active · e0 · s0 · m1 · after 0',
      'model_response_committed · running · active · e1 · s1 · m2 · after 0',
      'pre_effect_intent_committed · running · active · e1 · s1 · m2 · after 0 · tool_keyed dispatching',
      'effect_settled · running · active · e1 · s1 · m2 · after 0 · tool_keyed unknown · 1 unknown',
      'interrupt_opened · running · active · e1 · s1 · m2 · after 0 · tool_keyed unknown · tool_opaque intended · approval · 1 unknown',
      'pre_effect_intent_committed · running · active · e1 · s1 · m2 · after 0 · tool_keyed unknown · tool_opaque dispatching · 1 unknown',
      'effect_settled · running · active · e1 · s1 · m3 · after 0 · tool_keyed unknown · 1 unknown',
      'effect_settled · running · active · e1 · s1 · m4 · after 1',
      'control_applied · running · paused · e1 · s1 · m4 · after 1',
      'control_applied · running · paused · e1 · s1 · m4 · after 1',
      'control_applied · running · active · e2 · s1 · m4 · after 1',
      'model_response_committed · running · active · e2 · s2 · m5 · after 2',
      'run_terminal · completed · active · e2 · s2 · m5 · after 2',
    ]);
    expect(checkpoints.every(({ validation }) => validation.valid)).toBe(true);
    const ids = checkpoints.map(({ checkpoint_id }) => checkpoint_id);
    expect(ids).toStrictEqual([...new Set(ids)].toSorted());
    for (const checkpoint of checkpoints) {
      expect(await readCheckpoint(ledger.db, 'default', checkpoint.checkpoint_id)).toStrictEqual(checkpoint);
      expect(await readCheckpoint(ledger.db, 'other', checkpoint.checkpoint_id)).toBeNull();
    }
  });

  test('once it is there never changes, whatever the run does after it', async () => {
    const seen: CheckpointRecord[][] = [];
    const run = await eventful(async (now) => void seen.push(await checkpointsOf(now)));
    const all = await checkpointsOf(run);
    for (const before of seen) expect(all.slice(0, before.length)).toStrictEqual(before);
  });

  test('holds the results of refused calls and of calls that ended undispatched with the commit that wrote them', async () => {
    const run = await ledger.newStep([callOf('read')]);
    await run.call(0).attempt('unknown');
    await run.call(0).close('withdrawn', 'lost_read');
    const closed = await checkpointAt(run, 'effect_settled');
    expect([closed.messages.count, closed.resumes_after_step]).toStrictEqual([3, 1]);
    const attemptId = newId('att');
    const claim = await run.claimThink({ attemptId });
    if (claim.kind !== 'claimed') throw new Error(claim.kind);
    await run.answerThink(claim, attemptId, { step: 2, calls: [callOf('read')], refusedSlot: 0 });
    const refused = await checkpointAt(run, 'model_response_committed');
    expect([refused.messages.count, refused.resumes_after_step]).toStrictEqual([5, 2]);
  });

  test.each([
    [
      'a changed transition',
      'chain_broken',
      'run_terminal',
      `update holdfast.transitions set actor_id = 'me' where run_id = $1 and seq = 2`,
    ],
    [
      'a transition that is gone',
      'chain_broken',
      'run_terminal',
      'delete from holdfast.transitions where run_id = $1 and seq = 3',
    ],
    [
      'a message that is gone',
      'transcript_broken',
      'model_response_committed',
      'delete from holdfast.messages where run_id = $1 and step = 1 and position = 2',
    ],
    [
      'an event that is gone',
      'events_missing',
      'run_terminal',
      'delete from holdfast.run_events where run_id = $1 and seq = 3',
    ],
    [
      'a schema of tomorrow',
      'schema_unknown',
      'run_created',
      `update holdfast.runs set pins = pins || '{"ledger_version": 99}' where run_id = $1`,
    ],
  ] as const)('with %s does not validate, and no run goes on from it', async (_, fault, boundary, sql) => {
    const run = await ledger.newStep([callOf('opaque')]);
    await run.call(0).attempt('succeeded');
    await run.plan([]);
    await run.commit({ kind: 'move', to: 'completed', reason: 'answer_final' });
    await ledger.tamper(async (change) => void (await change(sql, run.runId)));
    const { checkpoint_id: id, validation } = await checkpointAt(run, boundary);
    expect(validation).toStrictEqual({ valid: false, faults: [fault] });
    expect(await askFork(run, id, { edits: { add_message: 'Go on.' } })).toStrictEqual({
      ...{ kind: 'not_forkable', reasons: [fault], in_doubt: [] },
    });
  });
});
