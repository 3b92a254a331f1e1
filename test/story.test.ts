import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { StoryView } from '../api/views/story-views.js';
import { decide, settle, untilGated } from './support/desk-world.js';
import { callOf } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { startTestApi, type TestApi } from './support/test-api.js';
import { keyOf, startWorld, type World } from './support/world.js';

// Goal: what happened to a failed run is rebuilt from its tables of record, without the feed, and is what the target saw
// (issue 4, the operational test of audit). Method: a worker that is killed, a refused call, a call that nobody can
// answer for and a person settles; then the feed is wiped by the superuser, and the story read through the API.

type Story = ReturnType<typeof StoryView.parse>;
async function storyOf(api: TestApi, runId: string): Promise<Story> {
  let whole: Story | undefined;
  for (let cursor: string | null = ''; cursor !== null;) {
    const query: string = cursor === '' ? '?limit=7' : `?limit=7&cursor=${cursor}`;
    const response = await api.request(`/v1/runs/${runId}/story${query}`);
    if (response.status !== 200) throw new Error(await response.text());
    const page = StoryView.parse(await response.json());
    whole = { ...page, entries: [...(whole?.entries ?? []), ...page.entries] };
    cursor = page.next_cursor;
  }
  return whole!;
}
const actsOf = ({ entries }: Story) => entries.map(({ kind, actor }) => `${kind} by ${actor.split(':')[0]}`);

describe('the story of a run that failed', () => {
  let world: World;
  let runId: string;
  let story: Story;
  let told: Awaited<ReturnType<World['transitions']>>;
  beforeAll(async () => {
    const steps = [reply('pay'), reply('mail'), reply('mail'), DONE];
    world = await startWorld({ workers: 0, script: script(when('story', ...steps)) });
    runId = await world.admit({
      input: `story ${randomUUID()}`,
      actorId: 'user:ada',
      contract: {
        effects: { mail: { approval: 'required' } },
        reconciliation: { after_not_committed: 'fail', owner: 'finance' },
      },
    });
    world.target.dial({ mode: 'drop_before', key: keyOf(runId, { step: 3 }), times: 1 });
    const first = world.startWorkerProcess({ faults: [{ point: 'act.after_call', mode: 'kill', runId }] });
    await first.ended;
    await world.startWorker();
    await decide(world, (await untilGated(world, runId))[0], { decision: 'deny', note: 'Not this one.' });
    await world.waitFor(runId, async () => {
      const effects = await world.effects(runId);
      return effects.length === 3 && (await world.runRow(runId)).state === 'awaiting_approval';
    });
    await decide(world, (await untilGated(world, runId))[0]);
    await world.waitFor(runId, 'needs_reconciliation');
    await settle(world, runId, { decided: 'not_committed', reference: null, note: 'The postbox is empty.' });
    await world.waitFor(runId, 'failed');
    told = await world.transitions(runId);
    await world.rows(
      `set session_replication_role = replica;
       delete from holdfast.run_events where run_id = '${runId}';
       set session_replication_role = default`,
    );
    expect(await world.events(runId)).toStrictEqual([]);
    const api = await startTestApi({ databaseUrl: world.databaseUrl });
    story = await storyOf(api, runId);
  }, 120_000);

  test('tells every act in order: the crash, the refusal, the doubt and who settled it', () => {
    const known = ['run_moved', 'control_moved', 'taken_over', 'model_asked', 'model_answered'];
    expect(actsOf(story).filter((act) => !known.includes(act.split(' ')[0]!))).toStrictEqual([
      'effect_intended by agent',
      expect.stringMatching(/^dispatched by /),
      'attempt_lost by holdfast',
      expect.stringMatching(/^dispatched by /),
      expect.stringMatching(/^receipt_succeeded by /),
      'effect_intended by agent',
      'asked_somebody by holdfast',
      'somebody_said by user',
      'not_dispatched by holdfast',
      'effect_intended by agent',
      'asked_somebody by holdfast',
      'somebody_said by user',
      'approval_used by holdfast',
      expect.stringMatching(/^dispatched by /),
      expect.stringMatching(/^attempt_unknown by /),
      'asked_somebody by holdfast',
      'reconciled by user',
      'receipt_not_committed by user',
    ]);
    const times = story.entries.map(({ at }) => at);
    expect(times).toStrictEqual(times.toSorted());
    expect(story.entries_total).toBe(story.entries.length);
  });

  test('names people with their words, and every move of the run with its reason', () => {
    expect(story.entries.filter(({ kind }) => kind === 'somebody_said')).toMatchObject([
      { actor: 'user:ben', what: 'Said "deny", as approver.', reason: 'Not this one.' },
      { actor: 'user:ben', what: 'Said "approve", as approver.', reason: null },
    ]);
    expect(story.entries.find(({ kind }) => kind === 'reconciled')).toMatchObject({
      ...{ actor: 'user:olga', reason: 'The postbox is empty.' },
      what: 'Settled the unknown call of mail as not_committed (person).',
    });
    const moves = story.entries.filter(({ kind }) => kind === 'run_moved');
    expect(moves.map(({ reason, ids }) => [ids['transition'], reason])).toStrictEqual(
      told.filter(({ region }) => region === 'run').map(({ seq, reason }) => [String(seq), reason]),
    );
    const byBen = story.actors.find(({ actor }) => actor === 'user:ben');
    expect(byBen?.did).toStrictEqual({ somebody_said: 2 });
    expect(story.actors[0]?.actor).toBe('user:ada');
  });

  test('says of each effect what the target itself wrote down', async () => {
    const { happened, did_not_happen, never_sent, unknown } = story.effects;
    const keysOf = async (group: Story['effects']['happened']): Promise<string[]> => {
      const effects = await world.effects(runId);
      const ids = group.effects.map(({ effect_id }) => effect_id);
      return effects.filter(({ effect_id }) => ids.includes(effect_id)).map((e) => e.idempotency_key);
    };
    const log = world.targetLog(runId);
    const applied = new Set(log.filter(({ kind }) => kind === 'applied').map(({ key }) => key));
    const arrived = new Set(log.filter(({ kind }) => kind === 'arrived').map(({ key }) => key));
    expect(await keysOf(happened)).toStrictEqual([...applied]);
    expect(await keysOf(did_not_happen)).toStrictEqual([...arrived].filter((key) => !applied.has(key)));
    for (const key of await keysOf(never_sent)) expect(arrived.has(key)).toBe(false);
    expect([happened.count, did_not_happen.count, never_sent.count, unknown.count]).toStrictEqual([
      1, 1, 1, 0,
    ]);
    const dispatches = story.entries.filter(({ kind }) => kind === 'dispatched');
    expect(dispatches).toHaveLength(log.filter(({ kind }) => kind === 'arrived').length);
  });

  test('says what the end means, and that its chain holds', () => {
    expect(story.end).toMatchObject({
      ...{ outcome: 'failed', reason: 'settled_not_committed' },
      meaning:
        'The run ended as failed. Of its effects 1 happened, 1 did not happen, 1 were never sent, and none is in doubt.',
    });
    expect(story.chain).toStrictEqual({ holds: true, transitions: told.length, broken: null });
    expect(story.disagreements).toStrictEqual([]);
  });
});

describe('a story', () => {
  let ledger: LedgerWorld;
  let api: TestApi;
  beforeAll(async () => {
    ledger = await openLedger();
    api = await startTestApi({ databaseUrl: ledger.url });
  });

  test('says where a chain is broken, and which effect says something else than its rows', async () => {
    const call = await ledger.newCall('opaque');
    await call.attempt('succeeded');
    await call.run.commit({ kind: 'move', to: 'failed', reason: 'internal_error' });
    const { effect_id } = await call.effect();
    await ledger.tamper(async (change) => {
      await change(
        `update holdfast.transitions set actor_id = 'user:eve' where run_id = $1 and seq = 2`,
        call.run.runId,
      );
      await change(`update holdfast.effects set state = 'not_committed' where effect_id = $1`, effect_id);
    });
    const story = await storyOf(api, call.run.runId);
    expect(story.chain).toMatchObject({ holds: false, broken: { seq: 2, problem: 'content_changed' } });
    expect(story.disagreements).toStrictEqual([{ effect_id, state: 'not_committed', outcome: 'happened' }]);
    expect(story.effects.happened.effects).toMatchObject([{ effect_id, reference: 'ref-1' }]);
  });

  test('of an open run has no end, and names who must find out what is unknown', async () => {
    const run = await ledger.newStep([callOf('opaque'), callOf('read')], {
      reconciliation: { owner: 'finance' },
    });
    await run.call(0).attempt('unknown');
    await run.call(1).attempt('succeeded');
    const story = await storyOf(api, run.runId);
    expect(story.end).toBeNull();
    expect(story.effects).toMatchObject({ reads: 1, happened: { count: 0 } });
    expect(story.effects.unknown).toMatchObject({
      count: 1,
      effects: [{ owner: 'finance', deadline_at: expect.any(String), actor: null }],
    });
  });

  test('is another tenant’s business to nobody, and refuses a cursor it never gave', async () => {
    const run = await ledger.newRun();
    const problemOf = async (path: string, tenant = 'default') =>
      ProblemView.parse(await (await api.request(`/v1/runs/${path}`, { tenant })).json()).code;
    expect(await problemOf(`${run.runId}/story`, 'other')).toBe('run_not_found');
    expect(await problemOf('run_1/story')).toBe('run_not_found');
    expect(await problemOf(`${run.runId}/story?cursor=x`)).toBe('cursor_invalid');
    expect(await problemOf(`${run.runId}/story?limit=0`)).toBe('invalid_request');
  });
});
