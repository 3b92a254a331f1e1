import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { CooldownListView, CooldownView } from '../api/views/cooldown-views.js';
import { RunView } from '../api/views/run-views.js';
import {
  ageCooldown,
  askModel,
  begun,
  cooldownOf,
  cooledRun,
  registerCooledAgents,
  stop,
} from './support/cooldowns.js';
import { decide, openGate } from './support/desk.js';
import { callOf, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

// Goal: what asked one run to come later is asked by nobody until then, and by one after another afterwards (SPEC 3.5).
// Method: runs of one model or tool claim side by side; time passes by making the cool-down older.

const HOUR = 3_600;
const DAY = 24 * HOUR;

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
  const models = ['crowd', 'word', 'silent', 'flight', 'cleared', 'again', 'shown', 'moved'];
  await registerCooledAgents(ledger, ...models);
});

const many = async (model: string, count: number): Promise<LedgerRun[]> =>
  await Promise.all(Array.from({ length: count }, () => cooledRun(ledger, model)));
const asks = async (runs: readonly LedgerRun[]): Promise<Record<string, number>> => {
  const said: Record<string, number> = {};
  for (const answer of await Promise.all(runs.map(askModel))) said[answer] = (said[answer] ?? 0) + 1;
  return said;
};

describe('a model that asked one run to come later', () => {
  test('is asked by no other until then, and by one after another from then on; no attempt is counted', async () => {
    const [first, ...others] = await many('crowd', 121);
    expect(await stop(first!, await begun(first!), 60_000)).toMatchObject({
      attempt: 1,
      notBeforeMs: expect.any(Number),
    });
    expect(await asks(others)).toStrictEqual({ cooling: 120 });
    const turns = await ledger.rows<{ gap: number | null; until: number }>(
      `select extract(epoch from r.cooldown_slot_at - lag(r.cooldown_slot_at) over (order by r.cooldown_slot_at))::float as gap,
              extract(epoch from r.cooldown_slot_at - c.until_at)::float as until
         from holdfast.runs r join holdfast.cooldowns c using (cooldown_id) where c.target = 'openai crowd'
        order by r.cooldown_slot_at`,
    );
    expect(turns).toHaveLength(121);
    for (const { gap, until } of turns) {
      expect(until).toBeGreaterThanOrEqual(0);
      if (gap !== null) expect(gap).toBeGreaterThanOrEqual(0.25);
    }
    expect(
      await ledger.rows(
        `select a.run_id from holdfast.model_attempts a join holdfast.runs r using (run_id) where r.agent = 'crowd'`,
      ),
    ).toHaveLength(1);

    // Ten seconds after the end forty turns have come, and no more go out, however often all ask.
    const { cooldown_id: id } = (await cooldownOf(ledger, 'openai crowd'))!;
    await ageCooldown(ledger, id, 70);
    const soon = await asks(others);
    expect(soon['claimed']).toBeGreaterThanOrEqual(39);
    expect(soon['claimed']).toBeLessThanOrEqual(60);
    // Answered already: they do not end it while somebody still has a turn to come.
    expect((await cooldownOf(ledger, 'openai crowd'))?.ended_by).toBeNull();
    await ageCooldown(ledger, id, 60);
    const left = others.filter(({ step }) => step === 0);
    expect(await asks(left)).toStrictEqual({ claimed: left.length });
    expect((await cooldownOf(ledger, 'openai crowd'))?.ended_by).toBe('success');
    expect(await asks(others)).toStrictEqual({ claimed: 120 });
  });

  test('is believed as far as the contract allows, and its own word stays to be seen', async () => {
    const [long, short] = await many('word', 2);
    await stop(long!, await begun(long!), 2 * DAY * 1_000);
    expect(await cooldownOf(ledger, 'openai word')).toMatchObject({ said_ms: String(2 * DAY * 1_000) });
    expect((await cooldownOf(ledger, 'openai word'))!.seconds).toBeGreaterThan(HOUR - 60);
    expect((await cooldownOf(ledger, 'openai word'))!.seconds).toBeLessThanOrEqual(HOUR);
    expect(await short!.claimThink()).toMatchObject({ kind: 'cooling', attempt: 0, attemptsMax: 5 });
  });

  test('and says something shorter to the next moves the end by nothing', async () => {
    const [one, other] = await many('again', 2);
    // Both were under way when it began to refuse.
    const begins = [await begun(one!), await begun(other!)] as const;
    await stop(one!, begins[0], 600_000);
    await stop(other!, begins[1], 1_000);
    const row = (await cooldownOf(ledger, 'openai again'))!;
    expect(row).toMatchObject({ stops: 2, said_ms: '600000' });
    expect(row.seconds).toBeGreaterThan(500);
  });

  test('and does not say when is left alone for two minutes', async () => {
    const [run, other] = await many('silent', 2);
    await stop(run!, await begun(run!));
    expect((await cooldownOf(ledger, 'openai silent'))!.seconds).toBeGreaterThan(110);
    expect((await cooldownOf(ledger, 'openai silent'))!.seconds).toBeLessThanOrEqual(120);
    expect(await askModel(other!)).toBe('cooling');
  });

  test('keeps the turn of a run that another execution takes over', async () => {
    const [run, waiting] = await many('moved', 2);
    await stop(run!, await begun(run!), 60_000);
    await askModel(waiting!);
    const turn = `select cooldown_slot_at as at from holdfast.runs where run_id = $1`;
    const [before] = await ledger.rows(turn, waiting!.runId);
    expect(await askModel(await waiting!.takenOver())).toBe('cooling');
    expect(await ledger.rows(turn, waiting!.runId)).toStrictEqual([before]);
  });

  test('is not well because an answer comes that was under way, and the same report twice is one stop', async () => {
    const [slow, run, other] = await many('flight', 3);
    const [begin, under] = [await begun(run!), await begun(slow!)];
    await stop(run!, begin, 60_000);
    expect(await stop(run!, begin, 60_000)).toMatchObject({ notBeforeMs: expect.any(Number) });
    slow!.step += 1;
    await slow!.answerThink(under, under.attemptId);
    expect(await cooldownOf(ledger, 'openai flight')).toMatchObject({ stops: 1, ended_by: null });
    expect(await askModel(other!)).toBe('cooling');
  });
});

test('a call that waits for its turn uses up no approval, and another key space is not its concern', async () => {
  const stopped = (await ledger.newStep([{ ...callOf('opaque'), namespace: 'busy' }])).call(0);
  const held = await openGate(
    (await ledger.newStep([{ ...callOf('opaque', { approval: 'required' }), namespace: 'busy' }])).call(0),
  );
  await decide(held);
  await stopped.attempt('throttled', { retryAfterMs: 60_000 });
  expect(await held.call.ask()).toBe('cooling');
  expect(
    await ledger.rows('select state from holdfast.interrupts where run_id = $1', held.run.runId),
  ).toStrictEqual([{ state: 'approved' }]);
  expect(await ledger.attempts(held.run.runId)).toStrictEqual([]);
  const { cooldown_id: id } = (await cooldownOf(ledger, 'busy'))!;
  await ageCooldown(ledger, id, 120);
  await held.call.attempt('succeeded');
  expect(await cooldownOf(ledger, 'busy')).toMatchObject({ ended_by: 'success' });

  // Without the target's word that is no cool-down: the call waits by itself.
  const calm = (await ledger.newStep([{ ...callOf('opaque'), namespace: 'calm' }])).call(0);
  await calm.attempt('throttled');
  expect(await cooldownOf(ledger, 'calm')).toBeUndefined();
});

describe('the API', () => {
  const clear = (id: string, roles = 'operator') =>
    api.request(`/v1/cooldowns/${id}`, { method: 'DELETE', headers: { 'x-roles': roles } });
  const list = async (query = ''): Promise<ReturnType<typeof CooldownListView.parse>> =>
    CooldownListView.parse(await (await api.request(`/v1/cooldowns${query}`)).json());

  test('shows what is cooling, why, in whose words and who waits; the run shows its turn', async () => {
    const [run, waiting] = await many('shown', 2);
    await stop(run!, await begun(run!), 90_000);
    await askModel(waiting!);
    const { cooldowns } = await list('?state=in_force&kind=model&limit=100');
    const shown = cooldowns.find(({ target }) => target === 'openai shown');
    expect(shown).toMatchObject({
      ...{ reason: 'rate_limited', stops: 1, retry_after_seconds: 90, detail: 'Too many.', waiting_runs: 2 },
      ...{ ended_at: null, cleared: null },
    });
    const read = RunView.parse(await (await api.request(`/v1/runs/${waiting!.runId}`)).json());
    expect(read.control.cooldown).toMatchObject({ cooldown_id: shown!.cooldown_id, until: shown!.until });
    // Of another tenant nobody waits; and page by page it is the same list.
    const elsewhere = await api.request('/v1/cooldowns?limit=100', { tenant: 'other' });
    expect(CooldownListView.parse(await elsewhere.json()).cooldowns.map((c) => c.waiting_runs)).not.toContain(
      2,
    );
    const first = await list('?state=any&limit=1');
    const second = await list(`?state=any&limit=1&cursor=${first.next_cursor}`);
    expect([...first.cooldowns, ...second.cooldowns].map((c) => c.cooldown_id)).toStrictEqual(
      (await list('?state=any&limit=2')).cooldowns.map((c) => c.cooldown_id),
    );
  });

  test('lets an operator say that it is over: who waits comes sooner, and still one after another', async () => {
    const [run, ...others] = await many('cleared', 21);
    await stop(run!, await begun(run!), 600_000);
    expect(await asks(others)).toStrictEqual({ cooling: 20 });
    const { cooldown_id: id } = (await cooldownOf(ledger, 'openai cleared'))!;
    const refused = await clear(id, 'requester,approver,auditor');
    expect([refused.status, ProblemView.parse(await refused.json()).code]).toStrictEqual([
      403,
      'role_required',
    ]);
    const cleared = CooldownView.parse(await (await clear(id)).json());
    expect(cleared).toMatchObject({ state: 'easing', cleared: { actor_id: 'tester' } });
    const said = await asks(others);
    expect(said['cooling']).toBeGreaterThanOrEqual(15);
    const turns = await ledger.rows<{ wait: number }>(
      `select extract(epoch from cooldown_slot_at - clock_timestamp())::float as wait from holdfast.runs
        where cooldown_id = $1 and run_id <> $2 and cooldown_slot_at is not null`,
      id,
      run!.runId,
    );
    for (const { wait } of turns) expect(wait).toBeLessThan(10);
    // Sent again it changes nothing; a stop after it is a cool-down of its own.
    expect(CooldownView.parse(await (await clear(id)).json()).cleared).toStrictEqual(cleared.cleared);
    await ageCooldown(ledger, id, 60);
    const late = others.find(({ step }) => step === 0)!;
    await stop(late, await begun(late), 60_000);
    expect((await cooldownOf(ledger, 'openai cleared'))?.cooldown_id).not.toBe(id);
    expect((await list('?state=over')).cooldowns.find((c) => c.cooldown_id === id)).toMatchObject({
      ended_by: 'stop',
    });
  });

  test.each(['cdn_nothing', `cdn_${'0'.repeat(32)}`])('knows of no %s', async (id) => {
    const response = await clear(id);
    expect([response.status, ProblemView.parse(await response.json()).code]).toStrictEqual([
      ...[404, 'cooldown_not_found'],
    ]);
  });
});
