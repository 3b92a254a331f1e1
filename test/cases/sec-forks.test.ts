import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../../api/views/common.js';
import { RunView } from '../../api/views/run-views.js';
import { checkpointAt, rowsOf } from '../support/forks.js';
import { bringRunTo, callOf, LedgerRun } from '../support/ledger-run.js';
import { type LedgerWorld, openLedger } from '../support/ledger-world.js';
import { startTestApi, type TestApi } from '../support/test-api.js';

// Cases from the field on the routes of checkpoints and forks: who may ask, and what a key stands for.

let ledger: LedgerWorld;
let api: TestApi;
let run: LedgerRun;
let checkpointId: string;
/** A run of the other tenant, with a checkpoint. */
let foreign: LedgerRun;
let foreignCheckpointId: string;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
  run = await ledger.newStep([callOf('opaque')]);
  await run.call(0).attempt('succeeded');
  checkpointId = (await checkpointAt(run, 'effect_settled')).checkpoint_id;
  foreign = await ledger.newRun({}, { tenantId: 't2' });
  const response = await api.request(`/v1/runs/${foreign.runId}/checkpoints`, { tenant: 't2' });
  const { checkpoints } = (await response.json()) as { checkpoints: { checkpoint_id: string }[] };
  foreignCheckpointId = checkpoints[0]!.checkpoint_id;
});

async function ask(
  runId: string,
  id: string,
  { tenant = 'default', roles = 'operator', actor = 'user:olga', key = randomUUID() as string } = {},
): Promise<Response> {
  return await api.request(`/v1/runs/${runId}/forks`, {
    ...{ method: 'POST', tenant, body: JSON.stringify({ checkpoint_id: id, mode: 'simulate' }) },
    headers: {
      ...{ 'content-type': 'application/json', 'idempotency-key': key },
      ...{ 'x-roles': roles, 'x-actor': actor },
    },
  });
}
const problemOf = async (response: Response) => ProblemView.parse(await response.json());
const forks = async (): Promise<number> => (await ledger.rows('select 1 from holdfast.forks')).length;

describe('case 100: the token of another tenant', () => {
  test('gets no checkpoint, makes no fork, and leaves no row of the run or of a fork', async () => {
    const before = [await rowsOf(ledger, run.runId), await forks()];
    const asked = [
      ['run_not_found', () => api.request(`/v1/runs/${run.runId}/checkpoints`, { tenant: 't2' })],
      ['checkpoint_not_found', () => api.request(`/v1/checkpoints/${checkpointId}`, { tenant: 't2' })],
      ['run_not_found', () => ask(run.runId, checkpointId, { tenant: 't2' })],
      // One's own run in the path, and another's checkpoint in the body; both ways.
      ['checkpoint_not_found', () => ask(foreign.runId, checkpointId, { tenant: 't2' })],
      ['checkpoint_not_found', () => ask(run.runId, foreignCheckpointId)],
    ] as const;
    for (const [code, request] of asked) {
      expect(await problemOf(await request())).toMatchObject({ status: 404, code });
    }
    expect([await rowsOf(ledger, run.runId), await forks()]).toStrictEqual(before);
  });

  test('of the right tenant finds no checkpoint of another run under this one', async () => {
    const other = await ledger.newRun();
    expect(await problemOf(await ask(other.runId, checkpointId))).toMatchObject({
      code: 'checkpoint_not_found',
    });
  });

  test.each([
    ['an auditor', { roles: 'auditor' }, 403],
    ['an approver', { roles: 'approver,releaser,admin' }, 403],
    ['a requester of other runs', { roles: 'requester' }, 403],
    ['the requester of the run', { roles: 'requester', actor: 'user:ada' }, 201],
    ['an operator', { roles: 'operator' }, 201],
  ] as const)('%s is answered by their role', async (_, who, status) => {
    const before = await forks();
    const response = await ask(run.runId, checkpointId, who);
    expect([response.status, await forks()]).toStrictEqual([status, before + (status === 201 ? 1 : 0)]);
    if (status === 403) expect((await problemOf(response)).code).toBe('role_required');
  });
});

describe('case 91: the key of a fork', () => {
  test.each(['failed', 'cancelled', 'needs_reconciliation'] as const)(
    'names the one run that it made, also when that is %s, and never a second',
    async (state) => {
      const key = randomUUID();
      const made = RunView.parse(await (await ask(run.runId, checkpointId, { key })).json());
      await bringRunTo(new LedgerRun(ledger, made.run_id, `exec-${randomUUID()}`), state);
      const before = await forks();
      const again = await ask(run.runId, checkpointId, { key });
      expect([again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
      expect(RunView.parse(await again.json())).toMatchObject({ run_id: made.run_id, execution: { state } });
      expect(await forks()).toBe(before);
    },
  );
});
