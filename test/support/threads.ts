import { randomUUID } from 'node:crypto';
import { RunContract } from '../../shared/domain/contract.js';
import type { JsonValue } from '../../shared/domain/json.js';
import { ROLES } from '../../shared/domain/roles.js';
import type { DoubleTexting, MessageState, MessageVerdict } from '../../shared/domain/thread-table.js';
import { createThread, type NewMessage, type Posted, postMessage } from '../../shared/ledger/threads.js';
import type { Db } from '../../shared/ledger/database.js';
import { LedgerRun } from './ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld } from './ledger-world.js';
import { until, type World } from './world.js';
import { AGENT } from './world-project.js';

/** A message as it stands. */
export interface MessageRow {
  readonly message_id: string;
  readonly seq: number;
  readonly text: string;
  readonly policy: DoubleTexting;
  readonly verdict: MessageVerdict;
  readonly state: MessageState;
  readonly code: string | null;
  readonly run_id: string | null;
  readonly met_run_id: string | null;
  readonly step: number | null;
}

/** What the runs of a test's thread are admitted under. */
export const threadContract = (changes: Readonly<Record<string, unknown>> = {}): RunContract =>
  RunContract.parse({
    objective: 'The customer is helped.',
    acceptance: { rule: 'They say so.', accepted_by: 'desk' },
    owner: 'desk',
    ...changes,
  });

type Place = Pick<LedgerWorld, 'rows'> & Partial<Pick<World, 'taskQueue'>> & { readonly db: Db };

/** A thread of one test. */
export class TestThread {
  readonly threadId: string;
  readonly #place: Place;
  readonly #agent: string;
  readonly #contract: RunContract;

  constructor(place: Place, threadId: string, agent: string, contract: RunContract) {
    this.threadId = threadId;
    this.#place = place;
    this.#agent = agent;
    this.#contract = contract;
  }

  /** Posts a message as the requester of every run here, unless told otherwise. */
  async post(text: JsonValue, changes: Partial<NewMessage> = {}): Promise<Posted> {
    const { db, taskQueue = 'nobody-listens' } = this.#place;
    return await postMessage(db, {
      ...{ tenantId: 'default', threadId: this.threadId, actorId: 'user:ada', roles: ROLES },
      ...{ endpoint: `POST /v1/threads/${this.threadId}/messages`, idempotencyKey: randomUUID() },
      ...{ input: text, policy: null, contract: this.#contract, agent: this.#agent, taskQueue },
      ...changes,
    });
  }

  async messages(): Promise<MessageRow[]> {
    return await this.#place.rows<MessageRow>(
      'select * from holdfast.thread_messages where thread_id = $1 order by seq',
      this.threadId,
    );
  }

  /** Every message as `text state`, in the order they came. */
  async standing(): Promise<string[]> {
    return (await this.messages()).map(({ text, state }) => `${text} ${state}`);
  }

  /** The thread's runs in their order. */
  async runIds(): Promise<string[]> {
    const rows = await this.#place.rows<{ run_id: string }>(
      'select run_id from holdfast.runs where thread_id = $1 order by thread_place',
      this.threadId,
    );
    return rows.map(({ run_id }) => run_id);
  }
}

/** A thread of the agent that this place has. */
export async function newThread(
  place: Place,
  policy: DoubleTexting = 'enqueue',
  contract: Readonly<Record<string, unknown>> = {},
  tenantId = 'default',
): Promise<TestThread> {
  const agent = place.taskQueue === undefined ? LEDGER_AGENT.name : AGENT;
  const whole = threadContract(contract);
  const created = await createThread(place.db, {
    ...{
      tenantId,
      actorId: 'user:ada',
      endpoint: 'POST /v1/threads',
      idempotencyKey: randomUUID(),
    },
    ...{ agent, policy, contract: whole },
  });
  if (created.kind !== 'created') throw new Error(`no thread: ${created.kind}`);
  return new TestThread(place, created.threadId, agent, whole);
}

/** The newest run of the thread, spoken for by an execution of its own. */
export async function newestRun(world: LedgerWorld, thread: TestThread): Promise<LedgerRun> {
  const runId = (await thread.runIds()).at(-1);
  if (runId === undefined) throw new Error('the thread has no run');
  return new LedgerRun(world, runId, `exec-${randomUUID()}`);
}

/** Waits until nothing waits or works on the thread any more; promoted runs are started as the starter does. */
export async function untilQuiet(world: World, thread: TestThread): Promise<void> {
  await until('the thread is quiet', async () => {
    await world.starter.round();
    const open = await world.rows(
      `select from holdfast.runs where thread_id = $1 and ended_at is null
        union all select from holdfast.thread_messages where thread_id = $1 and state = 'queued'`,
      thread.threadId,
    );
    return open.length === 0;
  });
}

/** A thread whose messages began a run, joined it, wait for its end, are to stop it, and were superseded. */
export async function addThread(world: LedgerWorld): Promise<TestThread> {
  const thread = await newThread(world);
  await thread.post('begins');
  const run = await newestRun(world, thread);
  await run.start();
  await run.plan([]);
  await thread.post('joins', { policy: 'steer' });
  await run.claimThink();
  await thread.post('waits');
  await thread.post('is superseded', { policy: 'interrupt' });
  await thread.post('stops', { policy: 'interrupt' });
  return thread;
}
