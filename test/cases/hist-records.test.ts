import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import { decide, toldResults, untilGated } from '../support/desk-world.js';
import { judge } from '../support/judge.js';
import { arrived, checkRun } from '../support/run-checks.js';
import { DONE, reply, script, when } from '../support/scripts.js';
import { keyOf, startWorld, type World } from '../support/world.js';

// Case 46: the target did it, and what says so could not be written at first. Every write of one place is refused twice, as
// by a full disk; the answer waits in the worker until it can be kept.

let world: World;
beforeAll(async () => {
  world = await startWorld({ script: script(when('mail', reply('mail'), DONE)) });
});

const FAILING = [
  ['the transcript', 'messages', `new.role = 'tool'`],
  ['the feed', 'run_events', `new.type = 'effect.settled'`],
  ['the receipt', 'receipts', 'true'],
] as const;

test.each(FAILING)(
  'case 46: %s cannot be written after the call: it is not made again, and all records agree',
  async (_, table, when_) => {
    await world.rows(`create sequence public.tries_${table}`);
    await world.rows(`
      create function public.fail_${table}() returns trigger language plpgsql as $$
      begin
        if nextval('public.tries_${table}') <= 2 then raise exception 'no space left' using errcode = '53100'; end if;
        return new;
      end $$`);
    await world.rows(`create trigger fail before insert on holdfast.${table}
      for each row when (${when_}) execute function public.fail_${table}()`);
    const contract = { effects: { mail: { approval: 'required' } } };
    const runId = await world.run({ input: `mail ${randomUUID()}`, contract });
    const [wait] = await untilGated(world, runId);
    expect(await decide(world, wait)).toBe('decided');
    await world.waitFor(runId, 'completed');
    const [tries] = await world.rows<{ count: number }>(
      `select last_value::int as count from public.tries_${table}`,
    );
    expect(tries?.count).toBeGreaterThan(2);
    await world.rows(`drop trigger fail on holdfast.${table}`);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(await world.attempts(runId)).toMatchObject([{ outcome: 'succeeded' }]);
    expect(await world.receipts(runId)).toMatchObject([{ status: 'succeeded', source: 'response' }]);
    const settled = (await world.events(runId)).filter(({ type }) => type === 'effect.settled');
    expect(settled).toHaveLength(1);
    expect(toldResults(world, runId)).toEqual([settled[0]?.data['result_text']]);
    await checkRun(world, runId);
  },
);

test('when all is said, ledger and target agree', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
});
