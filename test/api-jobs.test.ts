import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { JobView } from '../api/views/job-views.js';
import { decide, newGate, newUnknown, settle, submit } from './support/desk.js';
import { bringRunTo, callOf, type LedgerRun, USAGE } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

// Goal: that a run is completed says nothing of its job; whoever the contract names says it, once (SPEC 4.3).

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
});

const ACCEPT = { decision: 'accept', evidence: [{ name: 'refund', reference: 'pay_77' }] };
const REJECT = { decision: 'reject', note: 'The wrong order was refunded.' };
const acceptance = (changes: object = {}) => ({
  acceptance: { rule: 'One refund.', accepted_by: 'desk', ...changes },
});
interface Said {
  readonly key?: string | null;
  readonly actor?: string;
  readonly roles?: string;
  readonly tenant?: string;
  readonly body?: unknown;
  readonly via?: TestApi;
}
async function jobOf({ runId }: LedgerRun): Promise<string> {
  const [row] = await ledger.rows<{ id: string }>(
    'select job_id as id from holdfast.runs where run_id = $1',
    runId,
  );
  return row!.id;
}
async function endedJob(contract: object = {}): Promise<string> {
  const run = await ledger.newRun({ ...contract });
  await bringRunTo(run, 'completed');
  return await jobOf(run);
}
async function judge(jobId: string, say: Said = {}): Promise<Response> {
  const { key = randomUUID(), actor = 'desk', roles = 'requester', tenant = 'default', via = api } = say;
  return await via.request(`/v1/jobs/${jobId}/acceptance`, {
    ...{ method: 'POST', tenant },
    headers: {
      ...{ 'content-type': 'application/json', 'x-actor': actor, 'x-roles': roles },
      ...(key === null ? {} : { 'idempotency-key': key }),
    },
    body: JSON.stringify(say.body ?? ACCEPT),
  });
}
const read = async (jobId: string) => JobView.parse(await (await api.request(`/v1/jobs/${jobId}`)).json());
const problemOf = async (response: Response) => {
  const problem = ProblemView.parse(await response.json());
  expect(problem.status).toBe(response.status);
  return problem;
};

describe('a job', () => {
  test('of a completed run is not accepted by that: somebody says so, with evidence, once', async () => {
    const id = await endedJob();
    expect(await read(id)).toMatchObject({
      state: 'to_be_accepted',
      decision: null,
      runs: [{ state: 'completed' }],
    });
    const key = randomUUID();
    const response = await judge(id, { key });
    expect(response.status).toBe(200);
    const job = JobView.parse(await response.json());
    expect(job).toMatchObject({
      state: 'accepted',
      decision: {
        decision: 'accepted',
        evidence: ACCEPT.evidence,
        actor_id: 'desk',
        authority: 'named',
        note: '',
      },
    });
    expect(await read(id)).toStrictEqual({ ...job, cost: expect.anything() });
    const again = await judge(id, { key });
    expect([again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
    for (const say of [{ body: REJECT }, { actor: 'desk ', body: { ...ACCEPT, note: 'x' } }]) {
      expect(await problemOf(await judge(id, { key, ...say }))).toMatchObject({
        ...{ status: 422, code: 'idempotency_key_reused' },
      });
      expect(await problemOf(await judge(id, say))).toMatchObject({ status: 409, code: 'job_decided' });
    }
    expect((await read(id)).state).toBe('accepted');
  });

  test('may be rejected, whatever its run came to', async () => {
    const run = await ledger.newRun();
    await bringRunTo(run, 'failed');
    const id = await jobOf(run);
    expect((await judge(id, { body: REJECT })).status).toBe(200);
    expect(await read(id)).toMatchObject({
      state: 'rejected',
      decision: { decision: 'rejected', note: REJECT.note, evidence: [] },
    });
    expect((await ledger.runRow(run.runId)).state).toBe('failed');
  });

  test('is not judged while a run of it works', async () => {
    for (const state of ['admitted', 'running', 'awaiting_approval', 'needs_reconciliation'] as const) {
      const run = await ledger.newRun();
      await bringRunTo(run, state);
      const id = await jobOf(run);
      expect((await read(id)).state).toBe('working');
      expect(await problemOf(await judge(id))).toMatchObject({ status: 409, code: 'job_not_ended' });
      expect((await read(id)).decision).toBeNull();
    }
  });

  test('is judged by the role or the actor that its contract names, and by nobody else', async () => {
    const byRole = await endedJob(acceptance({ accepted_by: 'auditor' }));
    expect(await problemOf(await judge(byRole, { actor: 'auditor', roles: 'admin' }))).toMatchObject({
      ...{ status: 403, code: 'role_required' },
    });
    expect((await judge(byRole, { actor: 'ann', roles: 'auditor' })).status).toBe(200);
    expect((await read(byRole)).decision).toMatchObject({ actor_id: 'ann', authority: 'auditor' });
    const byName = await endedJob(acceptance({ accepted_by: ' User:Ann ' }));
    expect((await judge(byName, { actor: 'user:ben', roles: 'admin' })).status).toBe(403);
    // Full-width letters look the same and are the same; a header carries them only where an identity provider does.
    const wide = await endedJob(acceptance({ accepted_by: 'ｕser：ann' }));
    expect((await judge(wide, { actor: 'user:ann' })).status).toBe(200);
    expect((await judge(byName, { actor: 'USER:ann' })).status).toBe(200);
    const byRoleWritten = await endedJob(acceptance({ accepted_by: ' Auditor' }));
    expect(await problemOf(await judge(byRoleWritten, { actor: 'auditor', roles: 'admin' }))).toMatchObject({
      ...{ status: 403, code: 'role_required' },
    });
  });

  test('is not judged by whoever asked for it, where the contract says so', async () => {
    const own = acceptance({ accepted_by: 'approver', not_requester: true });
    const id = await endedJob(own);
    const requester = { actor: 'User:Ada', roles: 'approver' };
    expect(await problemOf(await judge(id, requester))).toMatchObject({ status: 403, code: 'self_approval' });
    expect((await judge(id, { actor: 'user:ben', roles: 'approver' })).status).toBe(200);
    const lax = await endedJob(acceptance({ accepted_by: 'approver' }));
    expect((await judge(lax, requester)).status).toBe(200);
  });

  test('that two judge at once through two processes hears one', async () => {
    const second = await startTestApi({ databaseUrl: ledger.url });
    for (let round = 0; round < 5; round += 1) {
      const id = await endedJob();
      const answers = await Promise.all([judge(id), judge(id, { body: REJECT, via: second })]);
      expect(answers.map(({ status }) => status).toSorted()).toStrictEqual([200, 409]);
      const won = JobView.parse(await answers.find(({ status }) => status === 200)!.json());
      expect((await read(id)).decision).toStrictEqual(won.decision);
    }
    await second.close();
  });

  // prettier-ignore
  test.each<readonly [what: string, status: number, code: string, say: Said]>([
    ['no key',                 400, 'idempotency_key_missing', { key: null }],
    ['no evidence',            400, 'invalid_request', { body: { decision: 'accept' } }],
    ['an empty evidence',      400, 'invalid_request', { body: { ...ACCEPT, evidence: [] } }],
    ['a digest that is none',  400, 'invalid_request', { body: { ...ACCEPT, evidence: [{ name: 'a', reference: 'b', sha256: 'X' }] } }],
    ['no reason to reject',    400, 'invalid_request', { body: { decision: 'reject' } }],
    ['a reason of blanks',     400, 'invalid_request', { body: { decision: 'reject', note: ' ' } }],
    ['another word',           400, 'invalid_request', { body: { ...ACCEPT, decision: 'accepted' } }],
    ['another tenant',         404, 'job_not_found',   { tenant: 'other' }],
  ])('is not judged with %s', async (_what, status, code, say) => {
    const id = await endedJob();
    expect(await problemOf(await judge(id, say))).toMatchObject({ status, code });
    expect((await read(id)).decision).toBeNull();
  });

  test('that is none, or is another tenant’s, is not there', async () => {
    const id = await endedJob();
    for (const [path, tenant] of [
      [id, 'other'],
      ['job_1', 'default'],
      [`job_${'0'.repeat(32)}`, 'default'],
    ] as const) {
      const response = await api.request(`/v1/jobs/${path}`, { tenant });
      expect(await problemOf(response)).toMatchObject({ status: 404, code: 'job_not_found' });
    }
    expect(await problemOf(await judge('job_1'))).toMatchObject({ code: 'job_not_found' });
  });
});

describe('the cost of a job', () => {
  test('has every part that the ledger knows, and null for what nobody measures', async () => {
    const gate = await newGate(ledger);
    await decide(gate);
    await gate.call.attempt('succeeded');
    await submit(gate.run, 'pause');
    expect((await read(await jobOf(gate.run))).cost).toMatchObject({
      model: {
        ...{ calls: 1, attempts: 1, input_tokens: USAGE.inputTokens, output_tokens: USAGE.outputTokens },
        ...{ wasted_tokens: 0, money: null },
      },
      tools: { calls: 1, attempts: 1, money: null },
      human: { decisions: 1, settlements: 0, commands: 1, money: null },
      recovery: { model_attempts_lost: 0, effect_attempts_lost: 0, status_queries: 0, takeovers: 0 },
      ...{ orchestration: null, sandbox: null, storage: null, total: null },
    });
  });

  test('counts what was lost, found out and settled as recovery', async () => {
    const run = await ledger.newStep([callOf('keyed')]);
    await run.call(0).lose();
    await run.call(0).attempt('succeeded');
    await run.claimThink();
    await run.claimThink({ step: 2 });
    const next = await run.takenOver();
    expect((await read(await jobOf(next))).cost).toMatchObject({
      model: { calls: 2, attempts: 3 },
      tools: { calls: 1, attempts: 2 },
      recovery: { model_attempts_lost: 1, effect_attempts_lost: 1, takeovers: 1 },
    });
    const unknown = await newUnknown(ledger);
    await settle(unknown);
    expect((await read(await jobOf(unknown.run))).cost).toMatchObject({
      human: { settlements: 1 },
      recovery: { effect_attempts_unclear: 1, reconciliations: 1 },
    });
  });

  test('counts how long somebody was waited for', async () => {
    const gate = await newGate(ledger);
    await ledger.rows(
      `update holdfast.interrupts set created_at = created_at - interval '1 hour' where interrupt_id = $1`,
      gate.interruptId,
    );
    const { human } = (await read(await jobOf(gate.run))).cost;
    expect(human.waiting_seconds).toBeGreaterThanOrEqual(3_600);
    expect(human.waiting_seconds).toBeLessThan(3_900);
  });
});
