import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import type { JsonValue } from '../shared/domain/json.js';
import { canonicalJson } from '../shared/domain/strict-json.js';
import { openApproval } from '../shared/ledger/approvals.js';
import { claimResume } from '../shared/ledger/commands.js';
import { sha256 } from '../shared/ledger/digest.js';
import { refusalOf } from '../shared/ledger/refusals.js';
import {
  decide,
  drain,
  expire,
  fates,
  type Gate,
  interruptOf,
  neededBy,
  newGate,
  openGate,
  said,
  submit,
} from './support/desk.js';
import { type LedgerCall } from './support/ledger-call.js';
import { callOf } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: nothing that needs an approval leaves without one that is complete, unexpired, of this very digest and unused;
// and of any number of words at once each is judged after the one before. Method: every way to get one wrong, then the
// claim, which is the only door.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

/** What the claim answers, in a word. */
async function ask(call: LedgerCall): Promise<string> {
  const answer = await call.claim();
  return answer.kind === 'effect' ? answer.state : answer.kind;
}
const attemptsOf = (gate: Gate) => ledger.attempts(gate.run.runId);
const eventsOf = async (gate: Gate, type: string) =>
  (await ledger.events(gate.run.runId)).filter((event) => event.type === type);
const resultOf = async (gate: Gate, slot = 0): Promise<string> => {
  const message = (await ledger.messages(gate.run.runId)).find(({ position }) => position === slot + 2);
  return String(message?.content['text']);
};
const stateOf = async (gate: Gate): Promise<string> => (await interruptOf(gate.call)).state;

describe('the scope', () => {
  test('is made from the stored call, and its digest is that of its canonical form', async () => {
    const gate = await newGate(ledger, { arguments: '{"amount":5,"to":"ORD-1"}' });
    const effect = await gate.call.effect();
    const { scope, scope_sha256, expires_at } = await interruptOf(gate.call);
    expect(scope).toMatchObject({
      ...{ tenant_id: 'default', run_id: gate.run.runId, effect_id: effect.effect_id, tool: 'tool_opaque' },
      ...{ arguments: { amount: 5, to: 'ORD-1' }, requested_by: 'user:ada', target: 'tool_opaque' },
      arguments_sha256: sha256('{"amount":5,"to":"ORD-1"}'),
      policy: { role: 'approver', quorum: 1 },
    });
    expect(new Date(String(scope['expires_at'])).getTime()).toBe(expires_at.getTime());
    expect(scope_sha256).toBe(sha256(canonicalJson(scope as JsonValue)));
  });

  test('that is not that of the stored call is refused', async () => {
    const run = await ledger.newStep([callOf('opaque', { approval: 'required' })]);
    const needed = await neededBy(run.call(0));
    for (const changes of [{ arguments_sha256: 'f'.repeat(64) }, { tool_version: 'f'.repeat(64) }]) {
      await expect(openApproval(ledger.db, run, { ...needed, ...changes })).rejects.toSatisfy(
        (error) => refusalOf(error) === 'scope_mismatch',
      );
    }
    expect(await ledger.rows('select from holdfast.interrupts where run_id = $1', run.runId)).toHaveLength(0);
  });

  test('is asked about once, however often, whoever repeats it', async () => {
    const run = await ledger.newStep([callOf('opaque', { approval: 'required' })]);
    const needed = await neededBy(run.call(0));
    await Promise.all(Array.from({ length: 10 }, () => openApproval(ledger.db, run, needed)));
    const gate = { call: run.call(0), run, ...(await ids(run.call(0))) };
    await decide(gate);
    expect(await ask(gate.call)).toBe('claimed');
    // An opening whose acknowledgement was lost comes once more, after the approval was used.
    await openApproval(ledger.db, run, needed);
    expect(await ledger.rows('select from holdfast.interrupts where run_id = $1', run.runId)).toHaveLength(1);
    expect(await eventsOf(gate, 'interrupt.opened')).toHaveLength(1);
  });
});

async function ids(call: LedgerCall): Promise<Pick<Gate, 'interruptId' | 'scopeSha256'>> {
  const { interrupt_id, scope_sha256 } = await interruptOf(call);
  return { interruptId: interrupt_id, scopeSha256: scope_sha256 };
}

describe('the claim', () => {
  test('waits for an approval, uses it, and is used up by it', async () => {
    const gate = await newGate(ledger);
    expect(await ask(gate.call)).toBe('approval_required');
    expect(await said(gate)).toBe('decided');
    expect(await ask(gate.call)).toBe('claimed');
    const interrupt = await interruptOf(gate.call);
    expect(interrupt).toMatchObject({ state: 'consumed', consumed_by: (await gate.call.effect()).effect_id });
    expect(await eventsOf(gate, 'interrupt.consumed')).toHaveLength(1);
    expect(await ask(gate.call)).toBe('dispatching');
    expect(await attemptsOf(gate)).toHaveLength(1);
  });

  test('of an effect that was given back needs no second approval; a redo does', async () => {
    const gate = await newGate(ledger, { effectClass: 'queryable' });
    await decide(gate);
    await gate.call.attempt('not_sent');
    const late = await gate.call.lose();
    await gate.call.settle(late, 'rejected');
    await gate.call.beginQuery();
    expect(await gate.call.state()).toBe('not_committed');
    expect(await gate.call.claim({ redo: 1 })).toMatchObject({ kind: 'approval_required' });
    expect(await gate.call.effect()).toMatchObject({ redo: 1, state: 'intended', attempts: 0 });
  });

  test('takes an approval of the other of two identical calls for none of its own (E04)', async () => {
    const planned = { ...callOf('opaque', { approval: 'required' }), arguments: '{"amount":5}' };
    const run = await ledger.newStep([planned, planned]);
    const [first, second] = [await openGate(run.call(0)), await openGate(run.call(1))];
    expect(first.scopeSha256).not.toBe(second.scopeSha256);
    await decide(first);
    expect(await ask(first.call)).toBe('claimed');
    expect(await ask(second.call)).toBe('approval_required');
    expect(await said(second, { scopeSha256: first.scopeSha256 })).toBe('scope_changed');
  });

  test('after an approval that ran out is a denial, told as nobody’s refusal (E03)', async () => {
    const gate = await newGate(ledger);
    await decide(gate);
    await expire(gate);
    expect(await ask(gate.call)).toBe('denied');
    expect(await stateOf(gate)).toBe('expired');
    expect(await attemptsOf(gate)).toStrictEqual([]);
    expect(await resultOf(gate)).toContain('not given in time');
    expect(await said(gate, { actorId: 'user:cyd' })).toBe('interrupt_expired');
  });

  test.each([
    ['the arguments alone', `arguments = '{"slot":9}'`],
    ['arguments and digest', `arguments = '{"slot":9}', arguments_sha256 = '${sha256('{"slot":9}')}'`],
  ])('never lets what was changed after the approval leave: %s (E05)', async (_what, change) => {
    const gate = await newGate(ledger);
    await decide(gate);
    await ledger.rows(`update holdfast.effects set ${change} where run_id = $1`, gate.run.runId);
    expect(await ask(gate.call)).toBe('denied');
    expect(await stateOf(gate)).toBe('superseded');
    expect(await attemptsOf(gate)).toStrictEqual([]);
    expect(await eventsOf(gate, 'effect.closed')).toMatchObject([{ data: { reason: 'changed' } }]);
  });

  test('after the run’s own time is over uses no approval up', async () => {
    const gate = await newGate(ledger);
    await decide(gate);
    await ledger.rows(
      `update holdfast.runs set deadline_at = clock_timestamp() where run_id = $1`,
      gate.run.runId,
    );
    expect(await ask(gate.call)).toBe('limit');
    expect(await stateOf(gate)).toBe('approved');
  });

  test('by another execution finds the same wait with the same digest and expiry', async () => {
    const gate = await newGate(ledger);
    const before = await interruptOf(gate.call);
    const taken = await gate.run.takenOver();
    const call = taken.call(0);
    expect(await call.claim()).toMatchObject({ kind: 'approval_required', needed: null });
    expect(await interruptOf(call)).toStrictEqual(before);
    await decide(gate);
    expect(await ask(call)).toBe('claimed');
  });
});

describe('of words at once', () => {
  test('two hundred approvals are one decision (E06)', async () => {
    const gate = await newGate(ledger);
    const answers = await Promise.all(
      Array.from({ length: 200 }, (_, index) => said(gate, { actorId: `user:${index}` })),
    );
    expect(answers.filter((answer) => answer === 'decided')).toHaveLength(1);
    expect(answers.filter((answer) => answer === 'interrupt_decided')).toHaveLength(199);
    expect(await eventsOf(gate, 'interrupt.decided')).toHaveLength(1);
    expect(await ask(gate.call)).toBe('claimed');
  });

  test('a yes and a no are one, and the claim follows the row (E07)', async () => {
    for (let round = 0; round < 20; round += 1) {
      const gate = await newGate(ledger);
      const [yes, no] = await Promise.all([
        said(gate),
        said(gate, { decision: 'deny', actorId: 'user:cyd' }),
      ]);
      expect([yes, no].toSorted()).toStrictEqual(['decided', 'interrupt_decided']);
      expect(await ask(gate.call)).toBe(yes === 'decided' ? 'claimed' : 'denied');
    }
  });

  test('two hundred at the instant of expiry are each approved or expired, never both (E02)', async () => {
    const calls = Array.from({ length: 200 }, () => callOf('opaque', { approval: 'required' }));
    const run = await ledger.newStep(calls);
    const seen = new Set<string>();
    for (let slot = 0; slot < calls.length; slot += 1) {
      const gate = await openGate(run.call(slot));
      // From over since a millisecond to over in so many that the answer comes before.
      await expire(gate, 1 - (slot % 40) / 2);
      const answer = await said(gate);
      const row = await interruptOf(gate.call);
      seen.add(answer);
      expect([answer, row.state]).toStrictEqual([answer, answer === 'decided' ? 'approved' : 'open']);
      if (row.decided_at !== null) {
        expect(row.decided_at.getTime()).toBeLessThanOrEqual(row.expires_at.getTime());
      } else expect(answer).toBe('interrupt_expired');
    }
    expect([...seen].toSorted()).toStrictEqual(['decided', 'interrupt_expired']);
  }, 90_000);

  test('twenty of a quorum of two are two', async () => {
    const gate = await newGate(ledger, { quorum: 2 });
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, index) => said(gate, { actorId: `user:${index}` })),
    );
    expect(answers.filter((answer) => answer === 'decided')).toHaveLength(2);
    expect(await ask(gate.call)).toBe('claimed');
  });
});

describe('who may decide', () => {
  test.each(['user:ada', 'USER:Ada', '  user:ada ', 'User:ADA'])(
    'not %j, who asked, and it is noted that they tried',
    async (actorId) => {
      const gate = await newGate(ledger);
      for (const decision of ['approve', 'deny'] as const) {
        expect(await said(gate, { actorId, decision })).toBe('self_approval');
      }
      expect(await eventsOf(gate, 'interrupt.decision_refused')).toMatchObject([
        { data: { code: 'self_approval', decision: 'approve' } },
        { data: { code: 'self_approval', decision: 'deny' } },
      ]);
      expect(await ask(gate.call)).toBe('approval_required');
    },
  );

  test('not without the role, nor over another tenant', async () => {
    const gate = await newGate(ledger);
    expect(await said(gate, { authority: 'operator' })).toBe('role_required');
    expect(await said(gate, { tenantId: 'other' })).toBe('interrupt_not_found');
    expect(await stateOf(gate)).toBe('open');
  });

  test('one person once in a quorum, however they are spelt and whatever the key', async () => {
    const gate = await newGate(ledger, { quorum: 2 });
    expect(await said(gate, { actorId: 'user:ben' })).toBe('decided');
    expect(await said(gate, { actorId: ' User:BEN' })).toBe('interrupt_decided');
    expect(await ask(gate.call)).toBe('approval_required');
    expect(await said(gate, { actorId: 'user:ada' })).toBe('self_approval');
    expect(await said(gate, { actorId: 'user:cyd' })).toBe('decided');
    expect(await ask(gate.call)).toBe('claimed');
    expect(await eventsOf(gate, 'interrupt.decided')).toMatchObject([
      { data: { state: 'open', approvals: 1, quorum: 2 } },
      { data: { state: 'approved', approvals: 2, quorum: 2 } },
    ]);
  });

  test('anybody with the role ends a quorum by a no', async () => {
    const gate = await newGate(ledger, { quorum: 3 });
    await decide(gate);
    expect(await said(gate, { actorId: 'user:cyd', decision: 'deny' })).toBe('decided');
    expect(await said(gate, { actorId: 'user:dan' })).toBe('interrupt_decided');
    expect(await ask(gate.call)).toBe('denied');
  });

  test('not about a digest that is not that of the scope', async () => {
    const gate = await newGate(ledger);
    expect(await said(gate, { scopeSha256: 'f'.repeat(64) })).toBe('scope_changed');
    expect(await ask(gate.call)).toBe('approval_required');
  });
});

describe('a decision', () => {
  test('sent again with its key is the same; with other words, or by another, it is another (E04)', async () => {
    const gate = await newGate(ledger, { quorum: 2 });
    const idempotencyKey = randomUUID();
    expect(await said(gate, { idempotencyKey })).toBe('decided');
    expect(await said(gate, { idempotencyKey })).toBe('replayed');
    expect(await said(gate, { idempotencyKey, note: 'fine' })).toBe('reused');
    expect(await said(gate, { idempotencyKey, decision: 'deny' })).toBe('reused');
    expect(await said(gate, { idempotencyKey, actorId: 'user:cyd' })).toBe('reused');
    expect(
      await ledger.rows('select from holdfast.decisions where interrupt_id = $1', gate.interruptId),
    ).toHaveLength(1);
  });

  test('can be taken back until it is used, and is then asked for anew', async () => {
    const gate = await newGate(ledger);
    expect(await said(gate, { decision: 'revoke' })).toBe('not_revocable');
    await decide(gate);
    expect(await said(gate, { decision: 'deny' })).toBe('interrupt_decided');
    expect(await said(gate, { decision: 'revoke', actorId: 'user:cyd' })).toBe('decided');
    expect(await stateOf(gate)).toBe('revoked');
    const again = await openGate(gate.call);
    expect(again.interruptId).not.toBe(gate.interruptId);
    expect(await said(gate)).toBe('interrupt_decided');
    await decide(again);
    expect(await ask(gate.call)).toBe('claimed');
    expect(await said(again, { decision: 'revoke' })).toBe('not_revocable');
    expect(await attemptsOf(gate)).toHaveLength(1);
  });

  test('is never changed or deleted', async () => {
    await decide(await newGate(ledger));
    await expect(ledger.rows(`update holdfast.decisions set note = 'x'`)).rejects.toThrow(/append_only/);
    await expect(ledger.rows('delete from holdfast.decisions')).rejects.toThrow(/append_only/);
    await expect(ledger.rows('delete from holdfast.interrupts')).rejects.toThrow(/append_only/);
  });

  test('reaches a paused run, which moves on only when it is resumed', async () => {
    const gate = await newGate(ledger);
    await submit(gate.run, 'pause');
    await drain(gate.run);
    expect(await said(gate)).toBe('decided');
    expect(await ask(gate.call)).toBe('control');
    expect(await stateOf(gate)).toBe('approved');
    await submit(gate.run, 'resume');
    await claimResume(ledger.db, gate.run, gate.run.trail());
    expect(await ask(gate.call)).toBe('claimed');
    expect(await fates(gate.run)).toStrictEqual(['pause applied', 'resume applied']);
  });

  test('before a cancel lets nothing leave after it, and after a cancel there is none (E10)', async () => {
    const [before, after] = [await newGate(ledger), await newGate(ledger)];
    await decide(before);
    for (const gate of [before, after]) await submit(gate.run, 'cancel');
    expect(await said(after)).toBe('cancel_in_force');
    for (const gate of [before, after]) {
      expect(await ask(gate.call)).toBe('control');
      await gate.run.commit(
        { kind: 'control', to: 'active', reason: 'cancel_requested' },
        { kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
        { kind: 'move', to: 'cancelled', reason: 'wound_down' },
      );
      expect(await stateOf(gate)).toBe('withdrawn');
      expect(await gate.call.state()).toBe('withdrawn');
      expect(await attemptsOf(gate)).toStrictEqual([]);
      const feed = await ledger.events(gate.run.runId);
      expect(await said(gate)).toBe('run_ended');
      expect(await ledger.events(gate.run.runId)).toStrictEqual(feed);
    }
  });

  test('that comes after a no and the end of the run changes nothing', async () => {
    const gate = await newGate(ledger);
    await decide(gate, { decision: 'deny', note: 'Not this one.' });
    expect(await ask(gate.call)).toBe('denied');
    await gate.run.commit({ kind: 'move', to: 'completed', reason: 'answer_final' });
    const feed = await ledger.events(gate.run.runId);
    expect(await said(gate)).toBe('interrupt_decided');
    expect(await ledger.events(gate.run.runId)).toStrictEqual(feed);
    expect(await gate.call.state()).toBe('denied');
  });

  test('that is missing keeps the run from completing', async () => {
    const gate = await newGate(ledger);
    await expect(gate.run.commit({ kind: 'move', to: 'completed', reason: 'answer_final' })).rejects.toThrow(
      /open_interrupts/,
    );
  });
});

test('done, failed, refused and not answered are four different ends, in the ledger and for the model (case 30)', async () => {
  const run = await ledger.newStep(
    Array.from({ length: 4 }, () => callOf('opaque', { approval: 'required' })),
  );
  const gates: Gate[] = [];
  for (let slot = 0; slot < 4; slot += 1) gates.push(await openGate(run.call(slot)));
  const [done, failed, refused, silent] = gates as [Gate, Gate, Gate, Gate];
  await decide(done);
  await done.call.attempt('succeeded');
  await decide(failed);
  await failed.call.attempt('rejected');
  await decide(refused, { decision: 'deny', note: 'Too much.' });
  expect(await ask(refused.call)).toBe('denied');
  await expire(silent);
  expect(await ask(silent.call)).toBe('denied');

  const effects = await ledger.effects(run.runId);
  expect(effects.map(({ state, attempts }) => [state, attempts])).toStrictEqual([
    ['succeeded', 1],
    ['rejected', 1],
    ['denied', 0],
    ['denied', 0],
  ]);
  expect(await Promise.all(gates.map(stateOf))).toStrictEqual(['consumed', 'consumed', 'denied', 'expired']);
  const texts = await Promise.all(gates.map((gate, slot) => resultOf(gate, slot)));
  expect(texts[2]).toBe('Not done: a person refused this call. They said: Too much.');
  expect(texts[3]).toContain('Nobody refused it.');
  expect(new Set(texts).size).toBe(4);
});
