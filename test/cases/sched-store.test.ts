import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { judge } from '../support/judge.js';
import { applied, arrived, checkRun, modelRequests } from '../support/run-checks.js';
import { call, DONE, reply, script, when } from '../support/scripts.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';
import { keyOf, startWorld, until } from '../support/world.js';

test('case 86: a run whose timer is due while the store is down wakes soon after it is back, and acts once', async () => {
  let proxy: TcpProxy | undefined;
  const world = await startWorld({
    databaseUrlOf: async (url) => {
      proxy = await startTcpProxy(url);
      return proxy.via(url);
    },
    script: script(
      when(
        'late',
        { attempts: [{ error: { reason: 'server_error', retryAfter: 2 } }, reply(call('pay'))] },
        DONE,
      ),
    ),
  });
  const runId = await world.run({ input: `late ${randomUUID()}` });
  await world.waitFor(runId, 'retry_wait');

  await proxy?.refuse();
  proxy?.resetAll();
  const handle = world.client.workflow.getHandle(runId);
  const happened = async (): Promise<number> => {
    const { events } = await handle.fetchHistory();
    const fired = events?.findIndex(({ timerFiredEventAttributes }) => Boolean(timerFiredEventAttributes));
    // After the timer comes the task that is the wake-up, scheduled and begun; it meets no store.
    return fired === undefined || fired < 0 ? 0 : (events?.length ?? 0) - fired;
  };
  await until('the wake-up has been tried', async () => (await happened()) >= 3);
  const [row] = await world.rows<{ past: boolean }>(
    'select bool_and(eligible_at < clock_timestamp()) as past from holdfast.retries where run_id = $1',
    runId,
  );
  expect(row?.past).toBe(true);
  expect(await world.path(runId)).toStrictEqual(['admitted', 'running', 'retry_wait']);
  expect(modelRequests(world, runId)).toHaveLength(1);

  await proxy?.pass();
  await world.waitFor(runId, 'completed');
  expect(await world.path(runId)).toStrictEqual([
    'admitted',
    'running',
    'retry_wait',
    'running',
    'completed',
  ]);
  expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  await checkRun(world, runId);
  expect(await judge(world, world.targetLog())).toEqual([]);
}, 60_000);
