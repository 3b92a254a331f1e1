import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { developmentIdentity } from '../api/identity.js';
import { ProblemView } from '../api/views/common.js';
import { CommandListView, CommandView } from '../api/views/desk-views.js';
import { RunView } from '../api/views/run-views.js';
import { type HoldfastError } from '../shared/domain/errors.js';
import { ROLES } from '../shared/domain/roles.js';
import { RUN_STATES, type RunState } from '../shared/domain/run-machine.js';
import { control, drain, newGate } from './support/desk.js';
import { bringRunTo, callOf, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
});

interface Asked {
  readonly key?: string | null;
  readonly actor?: string;
  readonly roles?: string;
  readonly tenant?: string;
  readonly body?: unknown;
  readonly via?: TestApi;
}

async function ask(runId: string, kind: unknown, asked: Asked = {}): Promise<Response> {
  const { key = randomUUID(), actor = 'olga', roles, tenant = 'default', body = {}, via = api } = asked;
  return await via.request(`/v1/runs/${runId}/commands`, {
    method: 'POST',
    tenant,
    headers: {
      'content-type': 'application/json',
      'x-actor': actor,
      ...(roles === undefined ? {} : { 'x-roles': roles }),
      ...(key === null ? {} : { 'idempotency-key': key }),
    },
    body: JSON.stringify({ ...(kind === undefined ? {} : { kind }), ...(body as object) }),
  });
}
const commandOf = async (response: Response) => CommandView.parse(await response.json());
const problemOf = async (response: Response) => {
  const problem = ProblemView.parse(await response.json());
  expect(problem.status).toBe(response.status);
  return problem;
};
const read = async (path: string): Promise<unknown> => (await api.request(path)).json();
const readRun = async (runId: string) => RunView.parse(await read(`/v1/runs/${runId}`));

async function running(): Promise<LedgerRun> {
  const run = await ledger.newRun();
  await run.start();
  return run;
}

describe('a command', () => {
  test('in force is 202, says where its fate is, and is applied when the run has carried it out', async () => {
    const run = await running();
    const response = await ask(run.runId, 'pause', { body: { reason: 'Lunch.' } });
    const command = await commandOf(response);
    expect(response.status).toBe(202);
    expect(command).toMatchObject({
      ...{ run_id: run.runId, kind: 'pause', reason: 'Lunch.', fate: 'accepted', code: null },
      ...{ actor_id: 'olga', authority: 'operator', state: 'running', control: 'active', decided_at: null },
    });
    const at = response.headers.get('location')!;
    expect(at).toBe(`/v1/commands/${command.command_id}`);
    expect(await read(at)).toStrictEqual(command);
    await drain(run);
    expect(await read(at)).toMatchObject({ fate: 'applied' });
  });

  test('that is so already, or needs no workflow, is 200', async () => {
    const run = await running();
    await ask(run.runId, 'pause');
    const again = await ask(run.runId, 'pause');
    expect([again.status, (await commandOf(again)).fate]).toStrictEqual([200, 'applied']);
    const admitted = await ledger.newRun();
    const cancel = await ask(admitted.runId, 'cancel');
    expect([cancel.status, (await commandOf(cancel)).fate]).toStrictEqual([200, 'applied']);
    const view = await readRun(admitted.runId);
    expect(view.execution.state).toBe('cancelled');
    const none = { count: 0, effects: [] };
    expect(view.terminal).toMatchObject({
      actor_id: 'olga',
      effects: { happened: none, did_not_happen: none, stopped: none, unknown: none },
    });
  });

  test('sent again with its key is 200 and the same command, whatever has become of it', async () => {
    const run = await running();
    const key = randomUUID();
    const first = await commandOf(await ask(run.runId, 'pause', { key }));
    await drain(run);
    const again = await ask(run.runId, 'pause', { key });
    expect([again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
    expect(await commandOf(again)).toMatchObject({ command_id: first.command_id, fate: 'applied' });
    const other = await problemOf(await ask(run.runId, 'cancel', { key }));
    expect(other).toMatchObject({ code: 'idempotency_key_reused', command_id: first.command_id });
    // The key belongs to this run's commands and to nothing else.
    expect((await ask((await running()).runId, 'cancel', { key })).status).toBe(202);
  });

  type Case = readonly [
    code: string,
    kind: string,
    bring: (run: LedgerRun) => Promise<unknown>,
    state: string,
  ];
  // prettier-ignore
  test.each<Case>([
    ['not_paused',         'resume', async () => undefined,                                       'running/active'],
    ['pause_in_progress',  'resume', (run) => ask(run.runId, 'pause'),                            'running/pause_requested'],
    ['resume_in_progress', 'pause',  async (run) => { await ask(run.runId, 'pause'); await drain(run); await ask(run.runId, 'resume'); },
                                                                                                  'running/resume_requested'],
    ['cancel_in_force',    'pause',  (run) => ask(run.runId, 'cancel'),                           'running/cancel_requested'],
    ['run_ended',          'cancel', (run) => run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' }), 'failed/active'],
  ])('is refused as %s: %s', async (code, kind, bring, state) => {
    const run = await running();
    await bring(run);
    const key = randomUUID();
    const problem = await problemOf(await ask(run.runId, kind, { key }));
    expect([problem.status, problem.code, `${String(problem['state'])}/${String(problem['control'])}`]).toStrictEqual([409, code, state]);
    expect(problem.detail).toContain(run.runId);
    expect(await read(`/v1/commands/${String(problem['command_id'])}`)).toMatchObject({ fate: 'rejected', code });
    // The same answer for ever, also once the command would be taken.
    if (code === 'pause_in_progress') await drain(run);
    const { instance: _first, ...same } = problem;
    const { instance: _again, ...again } = await problemOf(await ask(run.runId, kind, { key }));
    expect(again).toStrictEqual(same);
  });

  test('for a version that has passed is refused, and for the one that stands is taken', async () => {
    const run = await running();
    const { state_version: version } = (await readRun(run.runId)).concurrency;
    const late = await ask(run.runId, 'cancel', { body: { expected_state_version: version - 1 } });
    expect(await problemOf(late)).toMatchObject({ code: 'state_version_conflict', state: 'running' });
    const right = await ask(run.runId, 'cancel', { body: { expected_state_version: version } });
    expect(await commandOf(right)).toMatchObject({ expected_state_version: version, fate: 'accepted' });
  });

  test('twenty times at once through two processes: one resume claims, nineteen are told so', async () => {
    const second = await startTestApi({ databaseUrl: ledger.url });
    const run = await running();
    await ask(run.runId, 'pause');
    await drain(run);
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, index) =>
        ask(run.runId, 'resume', { via: index % 2 === 0 ? api : second }),
      ),
    );
    const codes = await Promise.all(
      answers.map(async (answer) => (answer.status === 202 ? 'taken' : (await problemOf(answer)).code)),
    );
    expect(codes.toSorted()).toStrictEqual([...Array<string>(19).fill('resume_in_progress'), 'taken']);
    await second.close();
  });
});

describe('a cancel, twice, of a run that is', () => {
  // prettier-ignore
  const ANSWERS: Readonly<Record<RunState, readonly string[]>> = {
    admitted:             ['200 applied', '200 applied'],
    running:              ['202 accepted', '200 applied'],
    waiting_for_input:    ['202 accepted', '200 applied'],
    awaiting_approval:    ['202 accepted', '200 applied'],
    retry_wait:           ['202 accepted', '200 applied'],
    compensating:         ['200 applied', '200 applied'],
    cancelling:           ['200 applied', '200 applied'],
    needs_reconciliation: ['202 accepted', '200 applied'],
    reconciling:          ['202 accepted', '200 applied'],
    completed:            ['409 run_ended', '409 run_ended'],
    compensated:          ['200 applied', '200 applied'],
    failed:               ['409 run_ended', '409 run_ended'],
    cancelled:            ['200 applied', '200 applied'],
  };
  const answerOf = async (response: Response): Promise<string> => {
    const word = response.ok ? (await commandOf(response)).fate : (await problemOf(response)).code;
    return `${response.status} ${word}`;
  };

  test.each(RUN_STATES)('%s has one lawful answer, and the same after it (E11)', async (state) => {
    const run = await ledger.newRun();
    await bringRunTo(run, state);
    const before = (await readRun(run.runId)).execution.state;
    const answers = [
      await answerOf(await ask(run.runId, 'cancel')),
      await answerOf(await ask(run.runId, 'cancel')),
    ];
    expect(answers).toStrictEqual(ANSWERS[state]);
    const { execution, concurrency } = await readRun(run.runId);
    // A cancel asks; only what never began ends on the spot.
    expect(execution.state).toBe(state === 'admitted' ? 'cancelled' : before);
    const transitions = await ledger.transitions(run.runId);
    expect(transitions).toHaveLength(concurrency.state_version);
    const asked = transitions.filter(
      ({ region, to_state }) => region === 'control' && to_state === 'cancel_requested',
    );
    expect(asked.length).toBeLessThanOrEqual(1);
  });
});

describe('a command is refused, and nothing is written, for', () => {
  // prettier-ignore
  test.each<[string, unknown, Asked, number, string]>([
    ['no key',              'pause',      { key: null },                               400, 'idempotency_key_missing'],
    ['no kind',             undefined,    {},                                          400, 'invalid_request'],
    ['an unknown kind',     'stop',       {},                                          400, 'invalid_request'],
    ['another case',        'Pause',      {},                                          400, 'invalid_request'],
    ['an unknown member',   'cancel',     { body: { force: true } },                   400, 'invalid_request'],
    ['an empty reason',     'pause',      { body: { reason: '' } },                    400, 'invalid_request'],
    ['a long reason',       'pause',      { body: { reason: 'x'.repeat(1_001) } },     400, 'invalid_request'],
    ['version 0',           'pause',      { body: { expected_state_version: 0 } },     400, 'invalid_request'],
    ['a version in text',   'pause',      { body: { expected_state_version: '2' } },   400, 'invalid_request'],
    ['NUL in the reason',   'pause',      { body: { reason: 'a\0b' } },                400, 'invalid_json'],
    ['another tenant',      'pause',      { tenant: 'other' },                         404, 'run_not_found'],
    ['a reader',            'pause',      { roles: 'auditor' },                        403, 'role_required'],
    ['an approver',         'cancel',     { roles: 'approver' },                       403, 'role_required'],
    ['nobody’s requester',  'cancel',     { roles: 'requester' },                      403, 'role_required'],
  ])('%s', async (_what, kind, asked, status, code) => {
    const run = await running();
    const before = await ledger.events(run.runId);
    expect(await problemOf(await ask(run.runId, kind, asked))).toMatchObject({ status, code });
    expect(await ledger.events(run.runId)).toStrictEqual(before);
    expect(await ledger.rows('select from holdfast.commands where run_id = $1', run.runId)).toHaveLength(0);
  });

  test('a run that could never be', async () => {
    for (const id of ['run_1', 'x', '%00', `run_${'f'.repeat(32)}`]) {
      expect(await problemOf(await ask(id, 'cancel'))).toMatchObject({ code: 'run_not_found' });
    }
  });
});

test('whoever asked for the run may stop it without being an operator', async () => {
  const run = await running();
  const response = await ask(run.runId, 'cancel', { actor: ' User:ADA', roles: 'requester' });
  expect(await commandOf(response)).toMatchObject({ authority: 'requester', actor_id: 'user:ada' });
});

describe('GET', () => {
  test('…/commands lists all of a run, oldest first, page by page, refused ones included', async () => {
    const run = await running();
    for (const kind of ['resume', 'pause', 'cancel']) await ask(run.runId, kind);
    const kinds: string[] = [];
    for (let cursor: string | null = ''; cursor !== null;) {
      const page = CommandListView.parse(
        await read(
          `/v1/runs/${run.runId}/commands?limit=1${cursor === '' ? '' : `&cursor=${encodeURIComponent(cursor)}`}`,
        ),
      );
      kinds.push(...page.commands.map(({ kind, fate }) => `${kind} ${fate}`));
      cursor = page.next_cursor;
    }
    expect(kinds).toStrictEqual(['resume rejected', 'pause expired', 'cancel accepted']);
    const { next_cursor: cursor } = CommandListView.parse(
      await read(`/v1/runs/${run.runId}/commands?limit=1`),
    );
    const elsewhere = `/v1/runs/${(await running()).runId}/commands?cursor=${encodeURIComponent(cursor ?? '')}`;
    expect(await read(elsewhere)).toMatchObject({ code: 'cursor_invalid' });
  });

  test('/v1/commands/{id} of another tenant, an unknown one and nonsense are one answer', async () => {
    const run = await running();
    const { command_id: id } = await commandOf(await ask(run.runId, 'pause'));
    for (const [tenant, named] of [
      ['other', id],
      ['default', `cmd_${'0'.repeat(32)}`],
      ['default', 'cmd_1'],
    ]) {
      const response = await api.request(`/v1/commands/${named}`, { tenant: tenant! });
      expect(await problemOf(response)).toMatchObject({ code: 'command_not_found', status: 404 });
    }
    expect((await api.request(`/v1/runs/${run.runId}/commands`, { tenant: 'other' })).status).toBe(404);
  });
});

describe('a run shows', () => {
  test('what a pause still waits for, then that it is drained, and who is waited for', async () => {
    const call = await ledger.newCall('opaque');
    const { run } = call;
    const claim = await call.claimed();
    await ask(run.runId, 'pause');
    expect((await readRun(run.runId)).control).toMatchObject({
      ...{ draining: { effects: 1, model_calls: 0, children: 0 }, drained: false },
      commands: [{ kind: 'pause', actor_id: 'olga' }],
    });
    await call.settle(claim, 'succeeded');
    await run.commit(control('pausing', 'pause_requested'));
    expect((await readRun(run.runId)).control.draining).toStrictEqual({
      effects: 0,
      model_calls: 0,
      children: 0,
    });
    await run.commit(control('paused', 'drained'));
    expect((await readRun(run.runId)).control).toMatchObject({ draining: null, drained: true, commands: [] });

    const thinking = await running();
    await thinking.claimThink();
    await ask(thinking.runId, 'pause');
    expect((await readRun(thinking.runId)).control.draining).toStrictEqual({
      effects: 0,
      model_calls: 1,
      children: 0,
    });

    const gate = await newGate(ledger);
    expect((await readRun(gate.run.runId)).control).toMatchObject({
      ...{ draining: null, drained: false, commands: [] },
      interrupts: [{ interrupt_id: gate.interruptId, tool: 'tool_opaque', required_role: 'approver' }],
    });
  });

  test('after a cancel what had happened, what did not, and what was stopped', async () => {
    const planned = ['opaque', 'opaque', 'opaque', 'queryable', 'opaque'] as const;
    const run = await ledger.newStep(planned.map((effectClass) => callOf(effectClass)));
    await run.call(0).attempt('succeeded');
    await run.call(1).attempt('rejected');
    await run.call(2).attempt('not_sent');
    await run.call(3).attempt('unknown');
    await run.call(3).query('found');
    await run.call(4).claimed();
    await ask(run.runId, 'cancel');
    await run.call(4).settle(await lastClaim(run, 4), 'not_sent');
    await run.commit(control('active', 'cancel_requested'), {
      ...{ kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
    });
    expect((await readRun(run.runId)).terminal).toBeNull();
    await run.commit({ kind: 'move', to: 'cancelled', reason: 'wound_down' });
    const { terminal } = await readRun(run.runId);
    expect(terminal?.effects).toMatchObject({
      happened: {
        count: 2,
        effects: [
          { tool: 'tool_opaque', state: 'succeeded', reference: 'ref-1' },
          { tool: 'tool_queryable', state: 'committed', reference: 'ref-found' },
        ],
      },
      did_not_happen: { count: 1, effects: [{ state: 'rejected' }] },
      stopped: { count: 2, effects: [{ state: 'withdrawn' }, { state: 'withdrawn' }] },
      unknown: { count: 0, effects: [] },
    });
  });
});

async function lastClaim(run: LedgerRun, slot: number) {
  const [row] = await ledger.rows<{ attempt_id: string; fencing_token: number }>(
    `select a.attempt_id, a.fencing_token from holdfast.attempts a join holdfast.effects e using (effect_id)
      where e.run_id = $1 and e.slot = $2 order by a.attempt desc limit 1`,
    run.runId,
    slot,
  );
  return { attemptId: row!.attempt_id, fencingToken: row!.fencing_token };
}

describe('the development identity', () => {
  const identify = (headers: Record<string, string>) =>
    developmentIdentity({ headers } as unknown as Parameters<typeof developmentIdentity>[0]);

  test('is `local` with every role, or whoever the header names, in one canonical form', () => {
    expect(identify({})).toStrictEqual({ tenantId: 'default', actorId: 'local', roles: ROLES });
    for (const name of ['Ada', ' ada ', 'ADA']) {
      expect(identify({ 'holdfast-actor': name })).toMatchObject({ actorId: 'ada' });
    }
  });

  test.each(['', '   ', 'x'.repeat(201), 'zo\u00eb', 'a\tb'])('refuses %j', (name) => {
    expect(() => identify({ 'holdfast-actor': name })).toThrow(
      expect.objectContaining({ code: 'invalid_request' }) as HoldfastError,
    );
  });
});
