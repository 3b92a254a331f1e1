import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import { beforeAll, expect, test } from 'vitest';
import { ROLES } from '../shared/domain/roles.js';
import { type DoubleTexting, DOUBLE_TEXTING } from '../shared/domain/thread-table.js';
import { closeOrphan } from '../shared/ledger/sweep.js';
import { archiveThread } from '../shared/ledger/threads.js';
import { control } from './support/desk.js';
import { LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { newThread, type TestThread } from './support/threads.js';

// Goal (SPEC 12.8): one active run a thread, no message lost, none delivered twice, in whatever order and however close
// together messages, ends, archives and crashes come. Method: random orders and races against the ledger.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

type Act =
  | { readonly do: 'post'; readonly policies: readonly DoubleTexting[]; readonly end: boolean }
  | { readonly do: 'again' | 'start' | 'think' | 'complete' | 'fail' | 'crash' | 'archive' | 'unarchive' };

const policies = fc.constantFrom(...DOUBLE_TEXTING);
const act: fc.Arbitrary<Act> = fc.oneof(
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('post' as const),
      policies: fc.tuple(policies),
      end: fc.constant(false),
    }),
  },
  // Several at once, and the end of the run among them.
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('post' as const),
      policies: fc.array(policies, { minLength: 2, maxLength: 3 }),
      end: fc.boolean(),
    }),
  },
  ...(['start', 'think', 'complete', 'fail'] as const).map((name) => ({
    weight: 2,
    arbitrary: fc.constant<Act>({ do: name }),
  })),
  ...(['again', 'crash', 'archive', 'unarchive'] as const).map((name) => ({
    weight: 1,
    arbitrary: fc.constant<Act>({ do: name }),
  })),
);

/** What one sequence has done so far. */
class Play {
  readonly thread: TestThread;
  readonly accepted = new Map<string, string>();
  readonly #runs = new Map<string, LedgerRun>();
  #said = 0;

  constructor(thread: TestThread) {
    this.thread = thread;
  }

  async active(): Promise<
    { readonly run: LedgerRun; readonly state: string; readonly control: string } | undefined
  > {
    const [row, ...more] = await ledger.rows<{ run_id: string; state: string; control: string }>(
      'select run_id, state, control from holdfast.runs where thread_id = $1 and ended_at is null',
      this.thread.threadId,
    );
    expect(more).toStrictEqual([]);
    if (row === undefined) return undefined;
    const run = this.#runs.get(row.run_id) ?? new LedgerRun(ledger, row.run_id, `exec-${randomUUID()}`);
    this.#runs.set(row.run_id, run);
    return { run, ...row };
  }

  async post(policy: DoubleTexting): Promise<void> {
    this.#said += 1;
    const text = `say ${this.#said}`;
    const posted = await this.thread.post(text, { policy, idempotencyKey: text });
    if (posted.kind === 'posted') this.accepted.set(text, posted.messageId);
    else expect(['thread_busy', 'thread_archived']).toContain(posted.kind);
  }

  async end(to: 'completed' | 'failed'): Promise<void> {
    const now = await this.active();
    if (now === undefined || now.state === 'admitted') return;
    if (now.control !== 'cancel_requested') {
      // Somebody may stop it in this very moment: then it ends as any run does that is stopped.
      await now.run.commit({ kind: 'move', to, reason: to === 'failed' ? 'model_failed' : 'answer_final' });
      return;
    }
    await now.run.commit(
      control('active', 'cancel_requested'),
      { kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
      { kind: 'move', to: 'cancelled', reason: 'wound_down' },
    );
  }

  async perform(step: Act): Promise<void> {
    const now = await this.active();
    switch (step.do) {
      case 'post':
        await Promise.all([
          ...step.policies.map((policy) => this.post(policy)),
          ...(step.end ? [this.end('completed')] : []),
        ]);
        return;
      case 'again': {
        const [last] = [...this.accepted].slice(-1);
        if (last === undefined) return;
        const [text, messageId] = last;
        const { policy } = (await this.thread.messages()).find(({ text: said }) => said === text)!;
        const answer = await this.thread.post(text, { policy, idempotencyKey: text });
        expect(answer).toStrictEqual({ kind: 'replayed', messageId });
        return;
      }
      case 'start':
        if (now?.state === 'admitted') await now.run.start();
        return;
      case 'think':
        if (now?.state === 'running' && now.control === 'active') await now.run.plan([]);
        return;
      case 'complete':
      case 'fail':
        return await this.end(step.do === 'fail' ? 'failed' : 'completed');
      case 'crash':
        if (now === undefined || now.state === 'admitted') return;
        await closeOrphan(
          ledger.db,
          now.run.runId,
          (await ledger.runRow(now.run.runId)).epoch,
          'workflow_vanished',
        );
        return;
      case 'archive':
      case 'unarchive':
        await archiveThread(ledger.db, {
          ...{ tenantId: 'default', threadId: this.thread.threadId, actorId: 'user:ada', roles: ROLES },
          archived: step.do === 'archive',
        });
    }
  }

  async check(): Promise<void> {
    const messages = await this.thread.messages();
    const now = await this.active();
    expect(messages.map(({ seq }) => seq)).toStrictEqual(messages.map((_, index) => index + 1));
    expect(new Set(messages.map(({ text }) => text))).toStrictEqual(new Set(this.accepted.keys()));
    // Whoever waits, waits for somebody.
    if (now === undefined) expect(messages.filter(({ state }) => state === 'queued')).toStrictEqual([]);
    expect(messages.filter(({ state }) => state === 'undelivered')).toStrictEqual([]);
    for (const { verdict, state } of messages) {
      if (state === 'superseded') expect(['stops', 'rolls_back']).toContain(verdict);
    }
    // Each message was read in one place, and each run began with one.
    const read = await ledger.rows<{ run_id: string; text: string; at: number }>(
      `select m.run_id, m.content ->> 'text' as text, m.step as at from holdfast.messages m join holdfast.runs r using (run_id)
        where r.thread_id = $1 and m.role = 'user' order by r.thread_place, m.step`,
      this.thread.threadId,
    );
    const given = messages.filter(({ run_id }) => run_id !== null);
    const texts = read.flatMap(({ run_id, text, at }) =>
      text.split('\n\n').map((one) => `${one} ${run_id} ${at}`),
    );
    expect(texts.toSorted()).toStrictEqual(
      given.map(({ text, run_id, step }) => `${text} ${run_id} ${step ?? 1}`).toSorted(),
    );
    const began = given.filter(({ step }) => step === null).map(({ run_id }) => run_id);
    expect(began.toSorted()).toStrictEqual((await this.thread.runIds()).toSorted());
  }
}

test('in any order of what can meet a thread, one run works and every message is read once or accounted for', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.constantFrom(...DOUBLE_TEXTING),
      fc.array(act, { minLength: 4, maxLength: 14 }),
      async (policy, acts) => {
        const play = new Play(await newThread(ledger, policy));
        for (const step of acts) {
          await play.perform(step);
          await play.check();
        }
        // It comes to rest, and nobody is left waiting.
        for (let now = await play.active(); now !== undefined; now = await play.active()) {
          if (now.state === 'admitted') await now.run.start();
          await play.end('completed');
        }
        await play.check();
      },
    ),
    { numRuns: 30 },
  );
}, 60_000);
