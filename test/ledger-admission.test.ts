import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import {
  admitRun,
  confirmStarts,
  readManifest,
  registerAgent,
  unstartedRuns,
} from '../shared/ledger/admission.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: one start key, one run, for ever, whoever asks and however often (SPEC 3.8).

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

const rowsOf = async (key: string): Promise<Record<string, number>> => {
  const [counts] = await ledger.rows<Record<string, number>>(
    `select count(*)::int as requests, count(distinct run_id)::int as runs from holdfast.api_requests
      where idempotency_key = $1`,
    key,
  );
  return counts!;
};

describe('an admission', () => {
  test('writes job, run, first transition, event and message, with every number of the contract in force', async () => {
    const { runId } = await ledger.newRun({ limits: { steps_max: 900, wall_clock_seconds: 60 } });
    const [run] = await ledger.rows<{ contract: { limits: unknown }; pins: object; seconds: number }>(
      `select contract, pins, extract(epoch from deadline_at - admitted_at)::int as seconds from holdfast.runs where run_id = $1`,
      runId,
    );
    // The agent's own limits are the most that a contract gets.
    expect(run!.contract.limits).toStrictEqual({
      steps_max: 50,
      tool_calls_max: 200,
      wall_clock_seconds: 60,
    });
    expect(run!.seconds).toBe(60);
    expect(run!.pins).toMatchObject({
      model: 'desk.yaml',
      agent_version: expect.stringMatching(/^[0-9a-f]{64}$/),
    });
    expect(await ledger.transitions(runId)).toMatchObject([
      { seq: 1, from_state: null, to_state: 'admitted', epoch: 0 },
    ]);
    expect((await ledger.events(runId)).map(({ type }) => type)).toStrictEqual(['run.admitted']);
    expect(await ledger.messages(runId)).toMatchObject([{ turn: 1, step: 1, position: 0, role: 'user' }]);
  });

  test('under the same key and body is the same run, for ever, also after it ended and its agent changed', async () => {
    const admission = ledger.admission();
    const first = await admitRun(ledger.db, admission);
    await registerAgent(ledger.db, { ...LEDGER_AGENT, instructions: 'Something else.' });
    await registerAgent(ledger.db, LEDGER_AGENT);
    for (let time = 0; time < 3; time += 1) {
      expect(await admitRun(ledger.db, admission)).toStrictEqual({ ...first, kind: 'replayed' });
    }
    expect(await rowsOf(admission.idempotencyKey)).toStrictEqual({ requests: 1, runs: 1 });
  });

  test.each([
    ['input', { input: 'Refund order ORD-2' }],
    ['agent', { agent: 'another-agent' }],
  ])('under the same key with another %s is refused, and the first run stays', async (_, changes) => {
    const admission = ledger.admission();
    const first = await admitRun(ledger.db, admission);
    expect(await admitRun(ledger.db, { ...admission, ...changes })).toStrictEqual({
      ...first,
      kind: 'reused',
    });
    expect(await rowsOf(admission.idempotencyKey)).toStrictEqual({ requests: 1, runs: 1 });
  });

  test('under the same key of another tenant or endpoint is another run', async () => {
    const admission = ledger.admission();
    const runs = [
      await admitRun(ledger.db, admission),
      await admitRun(ledger.db, { ...admission, tenantId: 'other' }),
      await admitRun(ledger.db, { ...admission, endpoint: 'POST /v1/threads/runs' }),
    ];
    expect(runs.map(({ kind }) => kind)).toStrictEqual(['admitted', 'admitted', 'admitted']);
    expect(await rowsOf(admission.idempotencyKey)).toStrictEqual({ requests: 3, runs: 3 });
  });

  test('of fifty at once under one key admits one run, and tells all of it', async () => {
    const admission = ledger.admission();
    const answers = await Promise.all(Array.from({ length: 50 }, () => admitRun(ledger.db, admission)));
    expect(answers.map(({ kind }) => kind).toSorted()).toStrictEqual([
      'admitted',
      ...Array<string>(49).fill('replayed'),
    ]);
    expect(new Set(answers.map((answer) => 'runId' in answer && answer.runId)).size).toBe(1);
    expect(await rowsOf(admission.idempotencyKey)).toStrictEqual({ requests: 1, runs: 1 });
    const [left] = await ledger.rows<{ orphans: number }>(
      `select count(*)::int as orphans from holdfast.jobs j where not exists (select from holdfast.runs where job_id = j.job_id)`,
    );
    expect(left!.orphans).toBe(0);
  });

  test('of fifty at once under one key with two bodies admits one, and refuses the other body', async () => {
    const admission = ledger.admission();
    const answers = await Promise.all(
      Array.from({ length: 50 }, (_, index) =>
        admitRun(ledger.db, { ...admission, input: `body ${index % 2}` }),
      ),
    );
    const count = (kind: string): number => answers.filter((answer) => answer.kind === kind).length;
    expect([count('admitted'), count('replayed'), count('reused')]).toStrictEqual([1, 24, 25]);
  });

  test('for an agent that nobody registered writes nothing, and the key stays free', async () => {
    const admission = ledger.admission({ agent: 'ghost' });
    expect(await admitRun(ledger.db, admission)).toStrictEqual({ kind: 'agent_not_found' });
    expect(await rowsOf(admission.idempotencyKey)).toStrictEqual({ requests: 0, runs: 0 });
    expect((await admitRun(ledger.db, { ...admission, agent: LEDGER_AGENT.name })).kind).toBe('admitted');
  });
});

describe('a start', () => {
  test('is owed to a run until it is confirmed or somebody took the run up', async () => {
    const fresh = await openLedger();
    const [first, second, third] = [await fresh.newRun(), await fresh.newRun(), await fresh.newRun()];
    const owed = async () => (await unstartedRuns(fresh.db, 10)).map(({ run_id }) => run_id);
    expect(await owed()).toStrictEqual([first.runId, second.runId, third.runId]);
    for (let time = 0; time < 2; time += 1) await confirmStarts(fresh.db, [first.runId]);
    await second.start();
    expect(await owed()).toStrictEqual([third.runId]);
    expect(await unstartedRuns(fresh.db, 0)).toStrictEqual([]);
  });
});

describe('an agent', () => {
  const agent = { ...LEDGER_AGENT, name: `agent-${randomUUID().slice(0, 8)}` };

  test('is known under the digest of its content, and the newest one registered is current', async () => {
    const first = await registerAgent(ledger.db, agent);
    const second = await registerAgent(ledger.db, { ...agent, instructions: 'Be brief.' });
    expect(second).not.toBe(first);
    const { runId } = await ledger.newRun({}, { agent: agent.name });
    const [run] = await ledger.rows<{ agent_version: string }>(
      'select agent_version from holdfast.runs where run_id = $1',
      runId,
    );
    expect(run!.agent_version).toBe(second);
    expect(await readManifest(ledger.db, agent.name, first)).toStrictEqual(agent);
    expect(await readManifest(ledger.db, agent.name, 'f'.repeat(64))).toBeUndefined();
  });

  test('registered by twenty workers at once is one version', async () => {
    const other = { ...agent, name: `${agent.name}-b` };
    const digests = await Promise.all(Array.from({ length: 20 }, () => registerAgent(ledger.db, other)));
    expect(new Set(digests).size).toBe(1);
    const rows = await ledger.rows('select 1 from holdfast.agent_versions where agent = $1', other.name);
    expect(rows).toHaveLength(1);
  });
});
