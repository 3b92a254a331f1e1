import { beforeAll, describe, expect, test } from 'vitest';
import type { ClaimedModelCall } from '../shared/ledger/model-calls.js';
import { closeOrphan } from '../shared/ledger/sweep.js';
import { commitTrail } from '../shared/ledger/trail.js';
import { archiveThread } from '../shared/ledger/threads.js';
import { ROLES } from '../shared/domain/roles.js';
import type { RunState } from '../shared/domain/run-machine.js';
import { messagesOf } from '../activities/transcript.js';
import { callOf, bringRunTo, type LedgerRun } from './support/ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';
import { control, settle, submit } from './support/desk.js';
import { intended, UNDOABLE } from './support/ledger-undo.js';
import { newestRun, newThread, TestThread, threadContract } from './support/threads.js';
import { until } from './support/until.js';

// Goal: one active run a thread; what is posted is delivered once or reported, whatever ends the run before it. Method:
// the ledger's own functions, with the moves that a workflow would make.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

async function working(thread: TestThread): Promise<LedgerRun> {
  const run = await newestRun(ledger, thread);
  await run.start();
  return run;
}

/** The end that a cancel in force brings, as the workflow winds down. */
async function windDown(run: LedgerRun): Promise<void> {
  await run.commit(
    control('active', 'cancel_requested'),
    { kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
    { kind: 'move', to: 'cancelled', reason: 'wound_down' },
  );
}

/** The prompt of the run's next model call. */
async function prompt(run: LedgerRun): Promise<string[]> {
  const claim = await run.claimThink();
  if (claim.kind !== 'claimed') throw new Error(`not claimed: ${claim.kind}`);
  return shown(claim);
}
const shown = (claim: ClaimedModelCall): string[] =>
  messagesOf(claim.messages).map((message) =>
    message.role === 'user'
      ? `user: ${message.text}`
      : message.role === 'tool'
        ? `tool: ${message.results.map(({ text }) => text).join(' | ')}`
        : `assistant: ${message.parts.map((part) => (part.type === 'tool_call' ? part.callId : part.text)).join(' ')}`,
  );

describe('a message to an idle thread', () => {
  test('begins a run in the transaction that accepts it, under every policy', async () => {
    for (const policy of ['enqueue', 'reject', 'interrupt', 'rollback', 'steer'] as const) {
      const thread = await newThread(ledger, policy);
      expect(await thread.post('one')).toMatchObject({ kind: 'posted' });
      const [message] = await thread.messages();
      expect(message).toMatchObject({
        seq: 1,
        policy,
        verdict: 'starts',
        state: 'delivered',
        met_run_id: null,
      });
      expect(await thread.runIds()).toStrictEqual([message?.run_id]);
      expect((await ledger.events(message?.run_id ?? ''))[0]?.data).toMatchObject({
        thread_id: thread.threadId,
      });
    }
  });

  test('is refused and leaves nothing where the thread is archived, unknown, or of another tenant or agent', async () => {
    const thread = await newThread(ledger);
    const archive = { tenantId: 'default', threadId: thread.threadId, actorId: 'user:ada', roles: ROLES };
    await archiveThread(ledger.db, { ...archive, archived: true });
    expect(await thread.post('x')).toMatchObject({ kind: 'thread_archived' });
    await archiveThread(ledger.db, { ...archive, archived: false });
    expect(await thread.post('x', { tenantId: 'other' })).toMatchObject({ kind: 'thread_not_found' });
    expect(await thread.post('x', { threadId: `thr_${'0'.repeat(32)}` })).toMatchObject({
      kind: 'thread_not_found',
    });
    expect(await thread.post('x', { agent: 'stranger' })).toMatchObject({ kind: 'agent_mismatch' });
    expect(await thread.messages()).toStrictEqual([]);
    expect(await thread.post('y')).toMatchObject({ kind: 'posted' });
    expect(await thread.standing()).toStrictEqual(['y delivered']);
  });
});

describe('the end of a run', () => {
  test.each(['completed', 'failed', 'cancelled', 'compensated'] as const)(
    'as %s gives the thread to the next message',
    async (end: RunState) => {
      const thread = await newThread(ledger);
      for (const text of ['one', 'two', 'three']) await thread.post(text);
      expect(await thread.standing()).toStrictEqual(['one delivered', 'two queued', 'three queued']);
      const run = await newestRun(ledger, thread);
      await bringRunTo(run, end);
      expect(await thread.standing()).toStrictEqual(['one delivered', 'two delivered', 'three queued']);
      const next = await newestRun(ledger, thread);
      await bringRunTo(next, 'completed');
      expect(await thread.standing()).toStrictEqual(['one delivered', 'two delivered', 'three delivered']);
      expect(await thread.runIds()).toHaveLength(3);
    },
  );

  test('and the next run are one transaction', async () => {
    const thread = await newThread(ledger);
    for (const text of ['one', 'two']) await thread.post(text);
    const run = await working(thread);
    const client = await ledger.db.connect();
    await client.query('begin');
    await commitTrail(client, run, {
      from: run.position + 1,
      entries: [{ kind: 'move', to: 'completed', reason: 'answer_final' }],
    });
    const states = 'select state from holdfast.runs where thread_id = $1 order by thread_place';
    const inside = await client.query(states, [thread.threadId]);
    expect(inside.rows).toStrictEqual([{ state: 'completed' }, { state: 'admitted' }]);
    await client.query('rollback');
    client.release();
    expect(await ledger.rows(states, thread.threadId)).toStrictEqual([{ state: 'running' }]);
    expect(await thread.standing()).toStrictEqual(['one delivered', 'two queued']);
  });

  test('that meets a message which is being accepted waits for it, and delivers it', async () => {
    const thread = await newThread(ledger);
    await thread.post('one');
    const run = await working(thread);
    const client = await ledger.db.connect();
    const place = { db: client, rows: ledger.rows.bind(ledger) };
    await client.query('begin');
    await new TestThread(place, thread.threadId, LEDGER_AGENT.name, threadContract()).post('two');
    const ended = run.commit({ kind: 'move', to: 'completed', reason: 'answer_final' });
    await until('the end waits', async () => {
      const waiting = await ledger.rows(
        `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
      );
      return waiting.length > 0;
    });
    await client.query('commit');
    client.release();
    await ended;
    expect(await thread.standing()).toStrictEqual(['one delivered', 'two delivered']);
  });

  test('by the sweeper, or of a run that nobody began, does so too', async () => {
    const thread = await newThread(ledger);
    for (const text of ['one', 'two', 'three']) await thread.post(text);
    const run = await working(thread);
    await closeOrphan(ledger.db, run.runId, 1, 'workflow_vanished');
    expect(await thread.standing()).toStrictEqual(['one delivered', 'two delivered', 'three queued']);
    await submit(await newestRun(ledger, thread), 'cancel');
    expect(await thread.standing()).toStrictEqual(['one delivered', 'two delivered', 'three delivered']);
  });

  test('is kept by no message that cannot become a run: that is reported, and the next goes on', async () => {
    const thread = await newThread(ledger);
    for (const text of ['one', 'two', 'three']) await thread.post(text);
    await ledger.tamper(async (change) => {
      await change(
        `update holdfast.thread_messages set admission = admission || '{"contract_sha256": "x"}' where thread_id = $1 and seq = 2`,
        thread.threadId,
      );
    });
    await bringRunTo(await newestRun(ledger, thread), 'completed');
    expect(await thread.standing()).toStrictEqual(['one delivered', 'two undelivered', 'three delivered']);
    expect((await thread.messages())[1]?.code).toBe('not_admitted');
  });
});

describe('interrupt', () => {
  test('cancels the run by the right of who sent it, and goes next; what waits keeps its turn', async () => {
    const thread = await newThread(ledger);
    await thread.post('one');
    const run = await working(thread);
    await thread.post('waits');
    await thread.post('stop', { policy: 'interrupt' });
    await thread.post('stop again', { policy: 'interrupt' });
    expect(await thread.standing()).toStrictEqual([
      'one delivered',
      'waits queued',
      'stop superseded',
      'stop again queued',
    ]);
    expect((await ledger.transitions(run.runId)).at(-1)).toMatchObject({
      ...{
        region: 'control',
        to_state: 'cancel_requested',
        reason: 'message_interrupts',
        actor_id: 'user:ada',
      },
    });
    await windDown(run);
    expect((await thread.standing()).slice(1)).toStrictEqual([
      'waits queued',
      'stop superseded',
      'stop again delivered',
    ]);
    expect(await prompt(await working(thread))).toStrictEqual(['user: one', 'user: stop again']);
  });

  test('ends a run that nobody began at once', async () => {
    const thread = await newThread(ledger, 'interrupt');
    await thread.post('one');
    await thread.post('two');
    expect(await thread.standing()).toStrictEqual(['one delivered', 'two delivered']);
    const [first = ''] = await thread.runIds();
    expect(await ledger.runRow(first)).toMatchObject({ state: 'cancelled' });
  });

  test('takes the right to stop the run, and changes nothing without it', async () => {
    const thread = await newThread(ledger);
    await thread.post('one');
    const run = await working(thread);
    const before = await ledger.footprint(run.runId);
    const bob = { actorId: 'user:bob', roles: ['requester', 'approver'] as const };
    for (const policy of ['interrupt', 'rollback', 'steer'] as const) {
      expect(await thread.post('mine', { policy, ...bob })).toMatchObject({ kind: 'role_required' });
    }
    // An operator may stop it, and may not put words into it.
    const olga = { actorId: 'user:olga', roles: ['operator'] as const };
    expect(await thread.post('mine', { policy: 'steer', ...olga })).toMatchObject({ kind: 'role_required' });
    expect(await ledger.footprint(run.runId)).toStrictEqual(before);
    expect(await thread.messages()).toHaveLength(1);
    expect(await thread.post('stop', { policy: 'interrupt', ...olga })).toMatchObject({ kind: 'posted' });
  });
});

describe('rollback', () => {
  test('takes the input and output of the run out of every later prompt, and nothing else', async () => {
    const thread = await newThread(ledger);
    await thread.post('one');
    const first = await working(thread);
    await first.plan([]);
    await first.commit({ kind: 'move', to: 'completed', reason: 'answer_final' });
    await thread.post('two');
    const second = await working(thread);
    await second.plan([callOf('opaque')]);
    await second.call(0).attempt('succeeded');
    await thread.post('also', { policy: 'steer' });
    await second.claimThink();
    await thread.post('three', { policy: 'rollback' });
    expect((await thread.standing())[1]).toBe('two delivered');
    await windDown(second);
    expect(await thread.standing()).toStrictEqual([
      'one delivered',
      'two rolled_back',
      'also rolled_back',
      'three delivered',
    ]);
    expect(await prompt(await working(thread))).toStrictEqual([
      'user: one',
      'assistant: Done.',
      'user: three',
    ]);
    expect(await ledger.effects(second.runId)).toMatchObject([{ state: 'succeeded' }]);
  });
});

describe('what a run left', () => {
  /** Every result that the next run of the thread is told, in order. */
  async function told(thread: TestThread): Promise<string[]> {
    await thread.post('next');
    const claim = await (await working(thread)).claimThink();
    if (claim.kind !== 'claimed') throw new Error(`not claimed: ${claim.kind}`);
    return claim.messages.flatMap(({ role, content }) => (role === 'tool' ? [String(content['text'])] : []));
  }

  test('has a result for each call, which says what became of it', async () => {
    const thread = await newThread(ledger);
    await thread.post('one');
    const run = await working(thread);
    await run.plan([
      callOf('opaque'),
      callOf('opaque'),
      callOf('read'),
      callOf('opaque', { approval: 'required' }),
    ]);
    await run.call(0).attempt('succeeded');
    await run.call(1).attempt('unknown');
    await run.call(2).attempt('unknown');
    await run.call(3).ask();
    await submit(run, 'cancel', { actorId: 'user:ada' });
    await run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
    await settle(run.call(1), { decided: 'not_committed', reference: null });
    await run.commit(
      { kind: 'move', to: 'reconciling', reason: 'person_settled' },
      { kind: 'move', to: 'cancelled', reason: 'wound_down' },
    );
    expect(await told(thread)).toStrictEqual([
      expect.stringContaining('succeeded') as unknown,
      expect.stringMatching(/^Not done: /) as unknown,
      expect.stringMatching(/^Stopped: .* It has changed nothing/) as unknown,
      expect.stringMatching(/^Not run: /) as unknown,
    ]);
  });

  test('and was undone afterwards is told as that', async () => {
    const thread = await newThread(ledger);
    await thread.post('one');
    const run = await working(thread);
    await run.plan([callOf('opaque', UNDOABLE), callOf('read')]);
    await run.call(1).attempt('succeeded');
    await (await intended(run.call(0))).attempt('succeeded');
    await run.commit({ kind: 'move', to: 'compensated', reason: 'compensation_done' });
    const [undone, read] = await told(thread);
    expect(undone).toMatch(/\n\[This was undone afterwards\.\]$/);
    expect(read).not.toMatch(/undone/);
  });
});

describe('steer', () => {
  test('is taken up at the next call, after the results, once, the same on every attempt', async () => {
    const thread = await newThread(ledger, 'steer');
    await thread.post('one');
    const run = await working(thread);
    await run.plan([]);
    await thread.post('two');
    await thread.post('three');
    const expected = ['user: one', 'assistant: Done.', 'user: two\n\nthree'];
    expect(await prompt(run)).toStrictEqual(expected);
    await thread.post('four');
    expect(await prompt(run)).toStrictEqual(expected);
    expect(await thread.standing()).toStrictEqual([
      'one delivered',
      'two delivered',
      'three delivered',
      'four queued',
    ]);
    expect(await thread.runIds()).toStrictEqual([run.runId]);
    expect((await thread.messages())[1]).toMatchObject({ run_id: run.runId, step: 2 });
  });

  test('that no call took up begins a run of its own', async () => {
    const thread = await newThread(ledger, 'steer');
    await thread.post('one');
    const run = await working(thread);
    await thread.post('two');
    await run.plan([]);
    await run.commit({ kind: 'move', to: 'completed', reason: 'answer_final' });
    expect(await thread.standing()).toStrictEqual(['one delivered', 'two delivered']);
    expect(await prompt(await working(thread))).toStrictEqual(['user: one', 'assistant: Done.', 'user: two']);
  });
});

test('case 69: messages that wait are bounded, and the refused one is told so', async () => {
  const thread = await newThread(ledger);
  await thread.post('first');
  await Promise.all(Array.from({ length: 100 }, (_, n) => thread.post(`n${n}`)));
  expect(await thread.post('too much')).toMatchObject({ kind: 'thread_full' });
  const seqs = (await thread.messages()).map(({ seq }) => seq);
  expect(seqs).toStrictEqual(Array.from({ length: 101 }, (_, n) => n + 1));
});
