import { expect, test } from 'vitest';
import { until } from './support/until.js';
import { startWebhookReceiver, verify } from './support/webhook-receiver.js';
import { deliveriesOf, makeDue, newEndpoint, SECRET_KEY } from './support/webhook-world.js';
import { startWorld } from './support/world.js';

// Goal: kill -9 of the worker in the middle of a delivery loses nothing: the next worker tells the receiver under the same
// id, and what comes after it in the run still waits. Method: real worker processes, a receiver that does not answer.
test('a worker that is killed while it tells a receiver is followed by one that tells it again', async () => {
  const world = await startWorld({ workers: 0 });
  const receiver = await startWebhookReceiver();
  receiver.answer(({ message }) => (message.type === 'interrupt.opened' ? 'hold' : 200));
  const endpoint = await newEndpoint(world.db, receiver.url);
  const env = { HOLDFAST_SECRET_KEY: SECRET_KEY, HOLDFAST_WEBHOOK_ALLOW: `127.0.0.1:${receiver.port}` };
  const first = world.startWorkerProcess({ env });
  const runId = await world.admit({ contract: { effects: { pay: { approval: 'required' } } } });
  await until('the receiver is told of the wait', () => receiver.received().length === 1, 60_000);
  await first.signal('SIGKILL');
  expect(await deliveriesOf(world, endpoint)).toMatchObject([{ kind: 'interrupt.opened', state: 'pending' }]);

  // As if the lease of the dead worker had run out.
  await makeDue(world, endpoint);
  receiver.answer(() => 200);
  const second = world.startWorkerProcess({ env });
  await until('the next worker tells it again', () => receiver.received().length >= 2, 60_000);
  await until('and notes it', async () => (await deliveriesOf(world, endpoint))[0]?.state === 'delivered');
  const [held, again] = receiver.received();
  expect([again?.id, again?.body]).toStrictEqual([held?.id, held?.body]);
  for (const one of [held!, again!]) expect(verify(endpoint.secret, one)).toStrictEqual(one.message);
  const tries = await world.rows(
    `select a.attempt, a.outcome from holdfast.webhook_attempts a join holdfast.webhook_deliveries d using (delivery_id)
      where d.run_id = $1 and d.kind = 'interrupt.opened' order by a.attempt`,
    runId,
  );
  expect(tries).toStrictEqual([
    { attempt: 1, outcome: 'lost' },
    { attempt: 2, outcome: 'delivered' },
  ]);
  // A worker that is asked to stop lets what is on its way end.
  receiver.answer(() => 'hold');
  await world.rows(
    `select holdfast.submit_command('cmd_' || md5('x'), 'default', $1, 'cancel', '{}', 'user:olga', 'operator', null, 'e', 'k', $2)`,
    runId,
    'a'.repeat(64),
  );
  await until('the receiver is told of the end', () => receiver.received().length >= 3, 60_000);
  const stopped = second.signal('SIGTERM');
  receiver.release();
  await stopped;
  expect(await world.rows('select 1 from holdfast.webhook_attempts where outcome is null')).toStrictEqual([]);
}, 120_000);
