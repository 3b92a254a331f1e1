import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { admitRun, confirmStarts, registerAgent } from '../shared/ledger/admission.js';
import { createLedgerPool } from '../shared/ledger/database.js';
import { claimEffect, closeEffect, examineEffect, settleEffect } from '../shared/ledger/effects.js';
import { claimModelCall, commitModelResponse, failModelAttempt } from '../shared/ledger/model-calls.js';
import { newId } from '../shared/ledger/new-id.js';
import { beginQuery, recordQuery } from '../shared/ledger/reconciliation.js';
import { isLedgerUnavailable } from '../shared/ledger/refusals.js';
import { closeOrphan } from '../shared/ledger/sweep.js';
import { commitTrail, takeOver } from '../shared/ledger/trail.js';
import { queryAnswerOf, settlementOf } from './support/ledger-call.js';
import { callOf, type LedgerRun, USAGE } from './support/ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTcpProxy, type TcpProxy } from './support/tcp-proxy.js';

// Goal: a commit whose acknowledgement was lost is unknown, and asking again under the same name gives the answer that
// the first one would have had, with nothing written twice (FAULTS A02, A04, A11; SPEC 3.1.4).
// Method: every writing function of the ledger, called by way of a proxy that lets the request through and resets the
// connection in place of the answer; what Postgres holds then is compared with what it holds after the repetition.

let ledger: LedgerWorld;
let proxy: TcpProxy;
/** Speaks to Postgres by way of the proxy. */
let cut: pg.Pool;
beforeAll(async () => {
  ledger = await openLedger();
  proxy = await startTcpProxy(ledger.url);
  cut = createLedgerPool({
    ...{ databaseUrl: proxy.via(ledger.url), max: 2, applicationName: 'cut', onIdleError: () => undefined },
  });
});
afterAll(() => cut.end());

const place = { turn: 1, step: 1 };
const slot = { ...place, slot: 0 };
const trailOf = (run: LedgerRun) => ({ from: run.position + 1, entries: [] });

interface Case {
  readonly name: string;
  /** Makes the run and gives the call, which may be made any number of times. */
  prepare(): Promise<{ readonly runId: string; readonly call: (db: pg.Pool) => Promise<unknown> }>;
}

const answered = (run: LedgerRun, attempt: number, attemptId: string) => ({
  ...{ attempt, attemptId, plan: [], refused: [], complete: true, assistant: { parts: [] } },
  chunks: [{ type: 'text', text: 'Done.' } as const],
  response: {
    ...{ parts: [{ type: 'text' as const, text: 'Done.' }], stopReason: 'stop' as const, usage: USAGE },
    ...{ requestId: run.runId, modelId: 'scripted', warnings: [] },
  },
});

async function thinking(): Promise<{ run: LedgerRun; attempt: number; attemptId: string }> {
  const run = await ledger.newRun();
  await run.start();
  const attemptId = newId('att');
  const claim = await run.claimThink({ attemptId });
  if (claim.kind !== 'claimed') throw new Error(claim.kind);
  return { run, attempt: claim.attempt, attemptId };
}

const CASES: readonly Case[] = [
  {
    name: 'claim-effect',
    prepare: async () => {
      const { run } = await ledger.newCall('opaque');
      const claim = { trail: trailOf(run), redo: 0, attemptId: newId('att'), worker: 'w', leaseMarginMs: 0 };
      return { runId: run.runId, call: (db) => claimEffect(db, run, slot, claim) };
    },
  },
  ...(['succeeded', 'rejected', 'not_sent', 'throttled', 'in_progress', 'unknown'] as const).map(
    (outcome) => ({
      name: 'settle-effect',
      prepare: async () => {
        const call = await ledger.newCall('opaque');
        const claim = await call.claimed();
        const { runId, execution } = call.run;
        return { runId, call: (db: pg.Pool) => settleEffect(db, execution, claim, settlementOf(outcome)) };
      },
    }),
  ),
  {
    name: 'settle-effect',
    prepare: async () => {
      const call = await ledger.newCall('opaque');
      const late = await call.lose();
      const { runId, execution } = call.run;
      return { runId, call: (db) => settleEffect(db, execution, late, settlementOf('succeeded')) };
    },
  },
  {
    name: 'examine-effect',
    prepare: async () => {
      const { run } = await ledger.newCall('opaque');
      await run.call(0).claimed();
      return { runId: run.runId, call: (db) => examineEffect(db, run, slot, trailOf(run)) };
    },
  },
  {
    name: 'close-effect',
    prepare: async () => {
      const { run } = await ledger.newCall('opaque');
      await run.call(0).attempt('not_sent');
      const close = { trail: trailOf(run), state: 'withdrawn', why: 'retries_exhausted' } as const;
      return { runId: run.runId, call: (db) => closeEffect(db, run, slot, close) };
    },
  },
  {
    name: 'begin-query',
    prepare: async () => {
      const { run } = await ledger.newCall('opaque');
      await run.call(0).settle(await run.call(0).lose(), 'succeeded');
      return { runId: run.runId, call: (db) => beginQuery(db, run, slot, trailOf(run)) };
    },
  },
  ...(['absent', 'found', 'inconclusive'] as const).map((answer) => ({
    name: 'record-query',
    prepare: async () => {
      const call = await ledger.newCall('queryable', { policy: { query: { settlingSeconds: 0 } } });
      await call.attempt('unknown');
      const question = await call.beginQuery();
      if (question.kind !== 'query') throw new Error(question.kind);
      return {
        runId: call.run.runId,
        call: (db: pg.Pool) => recordQuery(db, call.run, question, queryAnswerOf(answer)),
      };
    },
  })),
  {
    name: 'claim-model-call',
    prepare: async () => {
      const run = await ledger.newRun();
      await run.start();
      const claim = { trail: trailOf(run), attemptId: newId('att'), worker: 'w', knownStep: 0 };
      return { runId: run.runId, call: (db) => claimModelCall(db, run, place, claim) };
    },
  },
  {
    name: 'commit-model-response',
    prepare: async () => {
      const { run, attempt, attemptId } = await thinking();
      return {
        runId: run.runId,
        call: (db) => commitModelResponse(db, run, place, answered(run, attempt, attemptId)),
      };
    },
  },
  {
    name: 'fail-model-attempt',
    prepare: async () => {
      const { run, attempt, attemptId } = await thinking();
      const failure = { attempt, attemptId, reason: 'overloaded', detail: '', requestId: null, usage: USAGE };
      return { runId: run.runId, call: (db) => failModelAttempt(db, run, place, failure) };
    },
  },
  {
    name: 'commit-trail',
    prepare: async () => {
      const run = await ledger.newRun();
      const entries = [
        { kind: 'move', to: 'running', reason: 'run_started' },
        { kind: 'warning', code: 'w' },
      ] as const;
      return { runId: run.runId, call: (db) => commitTrail(db, run, { from: 1, entries }) };
    },
  },
  {
    name: 'take-over',
    prepare: async () => {
      const run = await ledger.newStep([callOf('keyed')]);
      await run.call(0).claimed();
      const next = { runId: run.runId, execution: `exec-${newId('att')}` };
      return { runId: run.runId, call: (db) => takeOver(db, next, 1, 'reset') };
    },
  },
  {
    name: 'close-orphan',
    prepare: async () => {
      const run = await ledger.newStep([callOf('opaque')]);
      await run.call(0).claimed();
      return { runId: run.runId, call: (db) => closeOrphan(db, run.runId, 1, 'workflow_vanished') };
    },
  },
  {
    name: 'confirm-starts',
    prepare: async () => {
      const run = await ledger.newRun();
      return { runId: run.runId, call: (db) => confirmStarts(db, [run.runId]) };
    },
  },
];

/** How long is left grows less by itself: it is no part of the answer. */
const timeless = (answer: unknown): unknown => {
  if (typeof answer !== 'object' || answer === null) return answer;
  return { ...answer, seriesMsLeft: 0, queryWaitMs: 0, leaseMsLeft: 0 };
};

const broken = (call: Promise<unknown>): Promise<unknown> =>
  call.then(
    () => 'answered',
    (error: unknown) => isLedgerUnavailable(error),
  );

describe('an answer that was lost', () => {
  test.each(CASES.map((one, index) => [index, one.name, one] as const))(
    '%i of ledger/%s: the row was there, and asking again writes no second one (A02, A11)',
    async (_, name, { prepare }) => {
      const { runId, call } = await prepare();
      const cuts = proxy.cuts;
      proxy.cutReplyAfter(`ledger/${name}`);
      expect(await broken(call(cut))).toBe(true);
      expect(proxy.cuts).toBe(cuts + 1);
      const written = await ledger.footprint(runId);
      const again = await call(cut);
      expect(await ledger.footprint(runId)).toStrictEqual(written);
      // And the same for whoever asks from elsewhere: the answer is in the ledger, not in the connection.
      expect(timeless(await call(ledger.db))).toStrictEqual(timeless(again));
      expect(await ledger.footprint(runId)).toStrictEqual(written);
    },
  );

  test('gives the claim to the attempt that made it, and to nobody else (A04)', async () => {
    const { run } = await ledger.newCall('opaque');
    const claim = { trail: trailOf(run), redo: 0, attemptId: newId('att'), worker: 'w', leaseMarginMs: 0 };
    proxy.cutReplyAfter('ledger/claim-effect');
    expect(await broken(claimEffect(cut, run, slot, claim))).toBe(true);
    expect(await run.call(0).ask()).toBe('dispatching');
    expect(await claimEffect(cut, run, slot, claim)).toMatchObject({
      kind: 'claimed',
      attempt: 1,
      fencingToken: 1,
    });
  });

  test('of an admission is the same run, and the caller is told that it was there', async () => {
    const admission = ledger.admission();
    proxy.cutReplyAfter('ledger/admit-run');
    expect(await broken(admitRun(cut, admission))).toBe(true);
    const again = await admitRun(cut, admission);
    expect(again.kind).toBe('replayed');
    const rows = await ledger.rows(
      'select 1 from holdfast.api_requests where idempotency_key = $1',
      admission.idempotencyKey,
    );
    expect(rows).toHaveLength(1);
  });

  test('of a registration leaves one version', async () => {
    const agent = { ...LEDGER_AGENT, name: 'agent-cut' };
    proxy.cutReplyAfter('ledger/register-agent');
    expect(await broken(registerAgent(cut, agent))).toBe(true);
    await registerAgent(cut, agent);
    expect(await ledger.rows(`select 1 from holdfast.agent_versions where agent = 'agent-cut'`)).toHaveLength(
      1,
    );
  });

  test('again and again is asked for until it comes', async () => {
    const call = await ledger.newCall('opaque');
    const claim = await call.claimed();
    proxy.cutReplyAfter('ledger/settle-effect', 5);
    const settle = () => settleEffect(cut, call.run.execution, claim, settlementOf('succeeded'));
    for (let time = 0; time < 5; time += 1) expect(await broken(settle())).toBe(true);
    expect((await settle()).state).toBe('succeeded');
    expect(await ledger.receipts(call.run.runId)).toHaveLength(1);
    expect(await ledger.lateReceipts(call.run.runId)).toStrictEqual([]);
  });
});

describe('a ledger that is not reached', () => {
  test('is told from one that refused: nothing was written, and the call may be made again', async () => {
    const call = await ledger.newCall('opaque');
    const claim = await call.claimed();
    const settle = () => settleEffect(cut, call.run.execution, claim, settlementOf('succeeded'));
    await proxy.refuse();
    proxy.resetAll();
    expect(await broken(settle())).toBe(true);
    expect(await call.state()).toBe('dispatching');
    await proxy.pass();
    expect((await settle()).state).toBe('succeeded');
  });

  test('whose connection is reset under the request is asked again, whatever became of it', async () => {
    const call = await ledger.newCall('opaque');
    const claim = await call.claimed();
    const settle = () => settleEffect(cut, call.run.execution, claim, settlementOf('succeeded'));
    await cut.query('select 1');
    proxy.blackhole('to_target');
    const lost = broken(settle());
    proxy.resetAll();
    expect(await lost).toBe(true);
    await proxy.pass();
    expect((await settle()).state).toBe('succeeded');
    expect(await ledger.receipts(call.run.runId)).toHaveLength(1);
  });

  test('that says nothing ends the wait by a time-out of ours, and counts as not reached (FAULTS C11)', async () => {
    const call = await ledger.newCall('opaque');
    const claim = await call.claimed();
    const impatient = createLedgerPool({
      ...{
        databaseUrl: proxy.via(ledger.url),
        max: 1,
        applicationName: 'impatient',
        onIdleError: () => undefined,
      },
    });
    impatient.options.query_timeout = 200;
    const settle = () => settleEffect(impatient, call.run.execution, claim, settlementOf('succeeded'));
    await impatient.query('select 1');
    proxy.blackhole('to_client');
    expect(await broken(settle())).toBe(true);
    proxy.resetAll();
    await proxy.pass();
    expect((await settle()).state).toBe('succeeded');
    expect(await ledger.receipts(call.run.runId)).toHaveLength(1);
    await impatient.end();
  });
});
