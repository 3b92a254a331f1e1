import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { readReconciliation } from '../shared/ledger/reads/list-reconciliations.js';
import { newUndo, newUnknown, settle, submit } from './support/desk.js';
import { next } from './support/ledger-undo.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: a person settles what no machine can, once, with name, evidence and note, and only that. Method: the same word
// at once, again, in other words, and about everything that is not for a person to settle.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

const settlementsOf = (runId: string) =>
  ledger.rows<{ decided: string; source: string; actor_id: string; note: string; evidence: unknown }>(
    'select * from holdfast.reconciliations where run_id = $1',
    runId,
  );

describe('a person’s word', () => {
  test('that it happened is a receipt with the outside name, and a fact for the model', async () => {
    const call = await newUnknown(ledger);
    expect(await settle(call)).toStrictEqual({ kind: 'settled', state: 'committed' });
    expect(await call.state()).toBe('committed');
    expect(await ledger.receipts(call.run.runId)).toMatchObject([
      { status: 'committed', source: 'person', reference: 'pay_77', attempt_id: null },
    ]);
    expect(await settlementsOf(call.run.runId)).toMatchObject([
      {
        ...{ decided: 'committed', source: 'person', actor_id: 'user:olga', note: 'Seen in the statement.' },
        evidence: { authority: 'operator', reference: 'pay_77' },
      },
    ]);
    const results = (await ledger.messages(call.run.runId)).filter(({ role }) => role === 'tool');
    expect(results).toMatchObject([{ content: { isError: false, text: expect.stringContaining('pay_77') } }]);
  });

  test('that it did not leaves the call to its contract, under a new key', async () => {
    const call = await newUnknown(ledger);
    expect(await settle(call, { decided: 'not_committed', reference: null })).toMatchObject({
      state: 'not_committed',
    });
    expect((await ledger.messages(call.run.runId)).filter(({ role }) => role === 'tool')).toStrictEqual([]);
    await call.run.commit(
      { kind: 'move', to: 'reconciling', reason: 'person_settled' },
      { kind: 'move', to: 'running', reason: 'settled_not_committed' },
    );
    const claim = await call.claimed({ redo: 1 });
    expect(claim.idempotencyKey).toMatch(/:r1$/);
  });

  test('counts for a run that is being cancelled too', async () => {
    const call = await newUnknown(ledger);
    await submit(call.run, 'cancel');
    expect(await settle(call)).toMatchObject({ kind: 'settled' });
    await call.run.commit(
      { kind: 'move', to: 'reconciling', reason: 'person_settled' },
      { kind: 'move', to: 'cancelled', reason: 'wound_down' },
    );
    expect(await call.state()).toBe('committed');
  });
});

describe('of words at once', () => {
  test('two that differ are one settlement, and the other is told what stands', async () => {
    for (let round = 0; round < 10; round += 1) {
      const call = await newUnknown(ledger);
      const [yes, no] = await Promise.all([
        settle(call),
        settle(call, { decided: 'not_committed', reference: null, actorId: 'user:ben' }),
      ]);
      const stands = await call.state();
      expect([yes.kind, no.kind].toSorted()).toStrictEqual(['already_settled', 'settled']);
      expect(stands).toBe(yes.kind === 'settled' ? 'committed' : 'not_committed');
      for (const answer of [yes, no]) expect(answer).toMatchObject({ state: stands });
      expect(await settlementsOf(call.run.runId)).toHaveLength(1);
    }
  });

  test('a person and a status query are one settlement', async () => {
    for (let round = 0; round < 5; round += 1) {
      const call = await newUnknown(ledger, 'queryable');
      await call.run.commit({ kind: 'move', to: 'reconciling', reason: 'status_query' });
      const begun = await call.beginQuery();
      if (begun.kind !== 'query') throw new Error(`no query: ${begun.kind}`);
      const [person] = await Promise.all([
        settle(call, { decided: 'not_committed', reference: null }),
        call.record(begun, 'found'),
      ]);
      expect(await call.state()).toBe(person.kind === 'settled' ? 'not_committed' : 'committed');
      expect(await settlementsOf(call.run.runId)).toHaveLength(1);
    }
  });

  test('twenty under one key are one settlement and nineteen repetitions', async () => {
    const call = await newUnknown(ledger);
    const idempotencyKey = randomUUID();
    const answers = await Promise.all(Array.from({ length: 20 }, () => settle(call, { idempotencyKey })));
    expect(answers.map(({ kind }) => kind).toSorted()).toStrictEqual([
      ...Array<string>(19).fill('replayed'),
      'settled',
    ]);
    expect(await settlementsOf(call.run.runId)).toHaveLength(1);
  });
});

describe('a settlement is refused', () => {
  test.each([
    { note: 'Seen in another statement.' },
    { reference: 'pay_78' },
    { decided: 'not_committed', reference: null },
    { actorId: 'user:ben' },
  ] as const)('as another request for a used key with %j', async (changes) => {
    const call = await newUnknown(ledger);
    const idempotencyKey = randomUUID();
    await settle(call, { idempotencyKey });
    expect(await settle(call, { idempotencyKey, ...changes })).toMatchObject({ kind: 'reused' });
    expect(await settlementsOf(call.run.runId)).toMatchObject([{ note: 'Seen in the statement.' }]);
  });

  test('for what is settled, in flight or done, and for what the run still finds out', async () => {
    for (const state of ['intended', 'dispatching', 'succeeded', 'rejected', 'withdrawn'] as const) {
      const call = await ledger.newCall('opaque');
      await call.bringTo(state);
      expect(await settle(call)).toStrictEqual({ kind: 'not_unknown', state });
    }
    const retried = await ledger.newCall('keyed');
    await retried.attempt('unknown');
    expect(await settle(retried)).toStrictEqual({ kind: 'not_unknown', state: 'unknown' });
    const found = await newUnknown(ledger, 'queryable');
    await found.query('found');
    expect(await settle(found)).toStrictEqual({ kind: 'already_settled', state: 'committed' });
  });

  test('over another tenant', async () => {
    const call = await newUnknown(ledger);
    expect(await settle(call, { tenantId: 'other' })).toStrictEqual({ kind: 'effect_not_found' });
    expect(await call.state()).toBe('unknown');
  });
});

test('what comes in time after all is evidence beside the settlement, never against it', async () => {
  const call = await ledger.newCall('opaque');
  const late = await call.lose();
  await call.run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
  await settle(call, { decided: 'not_committed', reference: null });
  await call.settle(late, 'succeeded');
  expect(await call.state()).toBe('not_committed');
  expect(await ledger.lateReceipts(call.run.runId)).toHaveLength(1);
});

describe('a word that somebody undid it', () => {
  test('of an unknown outcome is that it happened, and that it does not stand', async () => {
    const call = await newUnknown(ledger);
    expect(await settle(call, { decided: 'compensated', reference: 'reversal 9' })).toStrictEqual({
      ...{ kind: 'settled', state: 'committed' },
    });
    expect(await settlementsOf(call.run.runId)).toMatchObject([{ decided: 'compensated', source: 'person' }]);
    expect(await ledger.receipts(call.run.runId)).toMatchObject([{ status: 'committed', source: 'person' }]);
    const results = (await ledger.messages(call.run.runId)).filter(({ role }) => role === 'tool');
    expect(results).toMatchObject([{ content: { text: expect.stringMatching(/undone.*reversal 9/) } }]);
    const undos = await ledger.rows(
      'select state, why, reference, actor_id from holdfast.undos where run_id = $1',
      call.run.runId,
    );
    expect(undos).toStrictEqual([
      { state: 'compensated', why: 'by_hand', reference: 'reversal 9', actor_id: 'user:olga' },
    ]);
    expect(await settle(call, { decided: 'compensated' })).toMatchObject({ kind: 'already_settled' });
  });

  test.each([
    ['an unknown outcome', () => newUnknown(ledger), 'left', 'committed'],
    ['a known one', () => newUndo(ledger), 'committed', 'left'],
  ] as const)('answers another question than the other words about %s do', async (_, item, wrong, right) => {
    const call = await item();
    const before = await ledger.footprint(call.run.runId);
    expect(await settle(call, { decided: wrong })).toMatchObject({ kind: 'word_not_asked' });
    expect(await ledger.footprint(call.run.runId)).toStrictEqual(before);
    const reference = right === 'left' ? null : 'pay_77';
    expect(await settle(call, { decided: right, reference })).toMatchObject({ kind: 'settled' });
  });
});

describe('where the contract wants two people', () => {
  const contract = { reconciliation: { two_people: ['opaque'] } };
  const ben = { actorId: 'user:ben' };
  const items = [
    [
      'an outcome',
      () => newUnknown(ledger, 'opaque', { contract }),
      { decided: 'committed' },
      { decided: 'not_committed', reference: null },
    ],
    [
      'an undo',
      () => newUndo(ledger, 'opaque', { contract }),
      { decided: 'compensated' },
      { decided: 'left', reference: null },
    ],
  ] as const;
  const wordsOf = (runId: string) =>
    ledger.rows<{ actor_id: string; decided: string }>(
      'select actor_id, decided from holdfast.settlement_words where run_id = $1 order by word',
      runId,
    );

  test.each(items)(
    'about %s: the first word settles nothing, and the same of another does',
    async (_, item, word) => {
      const call = await item();
      const { state } = await call.effect();
      expect(await settle(call, word)).toStrictEqual({ kind: 'first_word', state });
      expect(await settle(call, { ...word, ...ben, note: 'So it is.' })).toMatchObject({ kind: 'settled' });
      expect((await wordsOf(call.run.runId)).map(({ actor_id }) => actor_id)).toStrictEqual([
        'user:olga',
        'user:ben',
      ]);
      expect((await ledger.events(call.run.runId)).map(({ type }) => type)).toContain(
        'reconciliation.first_word',
      );
    },
  );

  test('a word on an earlier doubt says nothing of a later one: what was sent since, that person never judged', async () => {
    const two = { reconciliation: { two_people: ['keyed'] } };
    const call = await ledger.newCall('keyed', { contract: two });
    await call.lose();
    await call.run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
    const not = { decided: 'not_committed', reference: null } as const;
    expect(await settle(call, not)).toMatchObject({ kind: 'first_word' });
    await call.run.commit(
      { kind: 'move', to: 'reconciling', reason: 'taken_over' },
      { kind: 'move', to: 'running', reason: 'taken_over' },
    );
    await call.attempt('unknown');
    await call.run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
    const item = await readReconciliation(ledger.db, 'default', (await call.effect()).effect_id);
    expect(item?.waiting?.first_word).toBeNull();
    expect(await settle(call, { ...not, ...ben })).toMatchObject({ kind: 'first_word', state: 'unknown' });
    expect(await settle(call, not)).toMatchObject({ kind: 'settled', state: 'not_committed' });
  });

  test.each(items)('about %s: nobody is both, however they spell their name', async (_, item, word) => {
    const call = await item();
    await settle(call, word);
    const state = await call.state();
    for (const actorId of ['user:olga', ' USER:Olga ']) {
      expect(await settle(call, { ...word, actorId })).toMatchObject({ kind: 'second_person_needed', state });
    }
    expect(await wordsOf(call.run.runId)).toHaveLength(1);
  });

  test.each(items)(
    'about %s: another word settles nothing, and the first stands',
    async (_, item, word, other) => {
      const call = await item();
      await settle(call, word);
      const state = await call.state();
      expect(await settle(call, { ...other, ...ben })).toMatchObject({ kind: 'words_differ', state });
      if (word.decided === 'committed') {
        expect(await settle(call, { ...word, ...ben, reference: 'pay_78' })).toMatchObject({
          kind: 'words_differ',
        });
      }
      expect(await wordsOf(call.run.runId)).toHaveLength(1);
      expect((await ledger.events(call.run.runId)).map(({ type }) => type)).toContain(
        'reconciliation.word_refused',
      );
      // Whoever was wrong says so, and then the two agree.
      expect(await settle(call, other)).toMatchObject({ kind: 'first_word', state });
      expect(await settle(call, { ...other, ...ben })).toMatchObject({ kind: 'settled' });
    },
  );

  test('two at once who say the same settle it between them, and a key says one thing for ever', async () => {
    for (let round = 0; round < 10; round += 1) {
      const call = await newUnknown(ledger, 'opaque', { contract });
      const both = await Promise.all([settle(call), settle(call, ben)]);
      expect(both.map(({ kind }) => kind).toSorted()).toStrictEqual(['first_word', 'settled']);
      expect(await settlementsOf(call.run.runId)).toHaveLength(1);
    }
    const call = await newUnknown(ledger, 'opaque', { contract });
    const key = { idempotencyKey: randomUUID() };
    expect(await settle(call, key)).toMatchObject({ kind: 'first_word' });
    expect(await settle(call, key)).toMatchObject({ kind: 'replayed' });
    expect(await settle(call, { ...key, note: 'Other words.' })).toMatchObject({ kind: 'reused' });
    expect(await settle(call, { ...key, ...ben })).toMatchObject({ kind: 'reused' });
    expect(await wordsOf(call.run.runId)).toHaveLength(1);
  });

  test('a class that it does not name is settled by one', async () => {
    const call = await newUnknown(ledger, 'queryable', { contract, policy: { query: { queriesMax: 1 } } });
    expect(await settle(call)).toMatchObject({ kind: 'settled' });
  });

  test('what was said of the outcome is no word about its undoing', async () => {
    const call = await newUnknown(ledger, 'opaque', { contract });
    await settle(call, { decided: 'compensated' });
    await settle(call, { decided: 'committed' });
    await settle(call, { decided: 'committed', ...ben });
    await call.run.commit(
      { kind: 'move', to: 'reconciling', reason: 'person_settled' },
      { kind: 'move', to: 'compensating', reason: 'cancel_requested' },
    );
    await next(call.run);
    await call.run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'undo_needs_person' });
    expect(await settle(call, { decided: 'compensated', ...ben })).toMatchObject({ kind: 'first_word' });
  });
});
