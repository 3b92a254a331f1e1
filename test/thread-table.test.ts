import { readFile } from 'node:fs/promises';
import pg from 'pg';
import { expect, test } from 'vitest';
import { CONTROL_STATES, RUN_STATES } from '../shared/domain/run-machine.js';
import { DOUBLE_TEXTING, judgeMessage, type MessageVerdict } from '../shared/domain/thread-table.js';
import { threadTableJson, threadTablePage } from '../shared/domain/thread-table-page.js';
import { createTestDatabase } from './support/servers.js';

// Goal: what a message makes of each state is one table, the same for people, the API and the ledger. Method: every cell
// stands here as text, and is compared with the function, the ledger's own judgement and the written files.

// Columns: enqueue, reject, interrupt, rollback, steer; the last one says in brackets what a cancel in force makes of it.
const CELLS = `
admitted             waits  busy   stops  rolls_back joins(waits)
running              waits  busy   stops  rolls_back joins(waits)
waiting_for_input    waits  busy   stops  rolls_back joins(waits)
awaiting_approval    waits  busy   stops  rolls_back joins(waits)
retry_wait           waits  busy   stops  rolls_back joins(waits)
compensating         waits  busy   stops  rolls_back waits(waits)
cancelling           waits  busy   stops  rolls_back waits(waits)
needs_reconciliation waits  busy   stops  rolls_back joins(waits)
reconciling          waits  busy   stops  rolls_back joins(waits)
completed            starts starts starts starts     starts(starts)
compensated          starts starts starts starts     starts(starts)
failed               starts starts starts starts     starts(starts)
cancelled            starts starts starts starts     starts(starts)`;

const short = (verdict: MessageVerdict): string => (verdict === 'thread_busy' ? 'busy' : verdict);

test('every policy in every state does what is written here', () => {
  const rows = RUN_STATES.map((state) =>
    [
      state,
      ...DOUBLE_TEXTING.map((policy) => {
        const verdict = short(judgeMessage(policy, state));
        const others = CONTROL_STATES.filter((control) => control !== 'cancel_requested');
        for (const control of others) expect(short(judgeMessage(policy, state, control))).toBe(verdict);
        const underCancel = short(judgeMessage(policy, state, 'cancel_requested'));
        expect(short(judgeMessage(policy, state, 'active', true))).toBe(underCancel);
        if (policy !== 'steer') expect(underCancel).toBe(verdict);
        return policy === 'steer' ? `${verdict}(${underCancel})` : verdict;
      }),
    ].join(' '),
  );
  expect(rows).toStrictEqual(
    CELLS.trim()
      .split('\n')
      .map((line) => line.replaceAll(/ +/g, ' ')),
  );
});

test('the ledger judges alike', async () => {
  const { url } = await createTestDatabase();
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  const { rows } = await client.query<{ cell: string }>(
    `select concat_ws(' ', p, s, c, u, holdfast.judge_message(p, s, c, u)) as cell
       from unnest($1::text[]) p, unnest($2::text[]) s, unnest($3::text[]) c, unnest(array[false, true]) u`,
    [DOUBLE_TEXTING, RUN_STATES, CONTROL_STATES],
  );
  await client.end();
  const cells = DOUBLE_TEXTING.flatMap((policy) =>
    RUN_STATES.flatMap((state) =>
      CONTROL_STATES.flatMap((control) =>
        [false, true].map((undoes) =>
          [policy, state, control, undoes ? 't' : 'f', judgeMessage(policy, state, control, undoes)].join(
            ' ',
          ),
        ),
      ),
    ),
  );
  expect(rows.map(({ cell }) => cell).toSorted()).toStrictEqual(cells.toSorted());
});

test('the written pages are those of the table', async () => {
  const read = (name: string) => readFile(new URL(`../docs/${name}`, import.meta.url), 'utf8');
  expect(await read('thread-table.json')).toBe(threadTableJson());
  expect(await read('thread-table.md')).toBe(threadTablePage());
});
