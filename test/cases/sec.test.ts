import { expect, test } from 'vitest';
import { ROUTES } from '../../api/routes/index.js';
import { newGate, newUnknown } from '../support/desk.js';
import { checkpointsOf } from '../support/forks.js';
import { LEDGER_AGENT, openLedger } from '../support/ledger-world.js';
import { definitionOf, newSchedule } from '../support/schedules.js';
import { startTestApi } from '../support/test-api.js';
import { newThread } from '../support/threads.js';

/** A body that each changing route would take of the right tenant; a route that is not here is no test passed by. */
const BODIES: Readonly<Record<string, (ids: Readonly<Record<string, string>>) => object>> = {
  submitCommand: () => ({ kind: 'cancel' }),
  resolveInterrupt: ({ scope_sha256 }) => ({ decision: 'approve', scope_sha256 }),
  settleEffect: () => ({ decided: 'not_committed', note: 'Not found.' }),
  judgeJob: () => ({ decision: 'reject', note: 'No.' }),
  forkRun: ({ checkpoint_id }) => ({ checkpoint_id, mode: 'simulate' }),
  redactRunFixture: () => ({ words: ['hello'] }),
  postMessage: () => ({ text: 'And then?' }),
  changeSchedule: () => ({ ...scheduleBody(), expected_version: 1 }),
  backfillSchedule: () => ({ from: '2026-01-01T00:00:00.000Z', to: '2026-01-01T01:00:00.000Z' }),
  // These take none.
  ...Object.fromEntries(
    [
      'archiveThread',
      'unarchiveThread',
      'pauseSchedule',
      'resumeSchedule',
      'deleteSchedule',
      'runScheduleNow',
    ].map((name) => [name, () => ({})]),
  ),
};

function scheduleBody(): object {
  const { thread_id: thread, ...definition } = definitionOf(LEDGER_AGENT.name);
  return { ...definition, thread };
}

test('case 100: every route about one thing answers 404 to another tenant, and changes nothing of it', async () => {
  const ledger = await openLedger();
  const api = await startTestApi({ databaseUrl: ledger.url });
  const gate = await newGate(ledger);
  const unknown = await newUnknown(ledger);
  const { runId } = gate.run;
  const [job] = await ledger.rows<{ job_id: string }>(
    'select job_id from holdfast.runs where run_id = $1',
    runId,
  );
  const effectId = (await unknown.effect()).effect_id;
  const command = await api.request(`/v1/runs/${unknown.run.runId}/commands`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': 'mine' },
    body: '{"kind":"pause"}',
  });
  const thread = await newThread(ledger);
  await thread.post('hello');
  const [message] = await thread.messages();
  const schedule = await newSchedule(ledger.db, definitionOf(LEDGER_AGENT.name));
  const [checkpoint] = await checkpointsOf({ world: ledger, runId });
  const ids: Record<string, string> = {
    ...{ run_id: runId, job_id: job!.job_id, interrupt_id: gate.interruptId, effect_id: effectId },
    ...{ command_id: ((await command.json()) as { command_id: string }).command_id },
    ...{ thread_id: thread.threadId, message_id: message!.message_id, schedule_id: schedule.scheduleId },
    ...{ checkpoint_id: checkpoint!.checkpoint_id, scope_sha256: gate.scopeSha256 },
  };
  const before = [await ledger.footprint(runId), await ledger.footprint(unknown.run.runId)];
  const waits = await ledger.rows('select * from holdfast.interrupts order by 1');
  const commands = await ledger.rows('select * from holdfast.commands order by 1');

  const asked: string[] = [];
  for (const { spec } of ROUTES) {
    const names = [...spec.path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name ?? '');
    // Things that this test makes none of have tests of their own.
    if (names.length === 0 || names.some((name) => ids[name] === undefined)) continue;
    const path = names.reduce((text, name) => text.replace(`{${name}}`, ids[name] ?? ''), spec.path);
    const body = spec.method === 'get' ? undefined : BODIES[spec.operationId];
    expect([spec.operationId, spec.method === 'get' || body !== undefined]).toStrictEqual([
      spec.operationId,
      true,
    ]);
    const response = await api.request(path, {
      ...{ tenant: 'other', method: spec.method.toUpperCase() },
      headers: {
        'content-type': 'application/json',
        'idempotency-key': `theirs-${spec.operationId}`,
        'last-event-id': '1',
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body(ids)) }),
    });
    const text = await response.text();
    expect([spec.operationId, response.status]).toStrictEqual([spec.operationId, 404]);
    expect(text).not.toContain('tool_');
    asked.push(spec.operationId);
  }
  expect(asked).toEqual(
    expect.arrayContaining(['readRun', 'streamRun', 'exportRun', ...Object.keys(BODIES)]),
  );

  // Ids in a query find nothing, whatever they name.
  for (const query of [
    `runs?parent=${runId}`,
    `runs?job_id=${ids['job_id']}`,
    `interrupts?run_id=${runId}`,
    `interrupts?root_run_id=${runId}`,
    `reconciliations?run_id=${unknown.run.runId}`,
  ]) {
    const page = (await (await api.request(`/v1/${query}`, { tenant: 'other' })).json()) as Record<
      string,
      unknown
    >;
    expect([query, Object.values(page).find(Array.isArray)]).toStrictEqual([query, []]);
  }
  expect([await ledger.footprint(runId), await ledger.footprint(unknown.run.runId)]).toStrictEqual(before);
  expect(await ledger.rows('select * from holdfast.interrupts order by 1')).toStrictEqual(waits);
  expect(await ledger.rows('select * from holdfast.commands order by 1')).toStrictEqual(commands);
});
