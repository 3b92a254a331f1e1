import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { InterruptGroupListView, InterruptListView, InterruptView } from '../api/views/desk-views.js';
import { newGate, submit } from './support/desk.js';
import { ask, asking, failModel, inputsOf, newWait, runOut, type Wait } from './support/input.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

// Goal: a person sees what is asked and answers it through the one endpoint, once, in time, in the form that this very
// wait was opened with. Method: waits that the ledger opened, and every way to answer one wrong.

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
});

interface Said {
  readonly key?: string;
  readonly actor?: string;
  readonly roles?: string;
  readonly tenant?: string;
  readonly body?: unknown;
  readonly via?: TestApi;
}

const FITS = { decision: 'answer', answer: { order: 'ORD-7' } };

async function resolve({ interruptId }: Pick<Wait, 'interruptId'>, say: Said = {}): Promise<Response> {
  const { key = randomUUID(), actor = 'olga', roles, tenant = 'default', body = FITS, via = api } = say;
  return await via.request(`/v1/interrupts/${interruptId}/resolve`, {
    method: 'POST',
    tenant,
    headers: {
      ...{ 'content-type': 'application/json', 'x-actor': actor, 'idempotency-key': key },
      ...(roles === undefined ? {} : { 'x-roles': roles }),
    },
    body: JSON.stringify(body),
  });
}

async function problemOf(response: Response) {
  const problem = ProblemView.parse(await response.json());
  expect(problem.status).toBe(response.status);
  return problem;
}
const codeOf = async (response: Response): Promise<string> =>
  response.status === 200 ? 'decided' : (await problemOf(response)).code;
const interruptAt = async (id: string) =>
  InterruptView.parse(await (await api.request(`/v1/interrupts/${id}`)).json());
const listed = async (query: string) =>
  InterruptListView.parse(await (await api.request(`/v1/interrupts?${query}`)).json()).interrupts;
const traces = async ({ run }: Wait) => [
  await ledger.events(run.runId),
  await inputsOf(run),
  await ledger.rows('select to_jsonb(r) as run from holdfast.runs r where run_id = $1', run.runId),
];

describe('a question', () => {
  test('is listed with every other wait, and shows what is asked, by whom it is answered and how', async () => {
    const wait = await newWait(ledger);
    const { runId } = wait.run;
    expect(await listed(`kind=input&run_id=${runId}`)).toMatchObject([
      {
        interrupt_id: wait.interruptId,
        kind: 'input',
        state: 'open',
        tool: 'ask_desk',
        effect_id: null,
        slot: 0,
      },
    ]);
    expect(await listed(`kind=approval&run_id=${runId}`)).toStrictEqual([]);
    expect(await listed(`role=operator&run_id=${runId}`)).toHaveLength(1);
    expect(await interruptAt(wait.interruptId)).toMatchObject({
      ...{ required_role: 'operator', on_expiry: 'tell_model', effect_state: null, decisions: [] },
      scope: { description: 'Asks the desk.', arguments: { text: 'Which order?' } },
      answer_schema: { required: ['order'] },
    });
    const run = (await (await api.request(`/v1/runs/${runId}`)).json()) as {
      control: { interrupts: unknown };
    };
    expect(run.control.interrupts).toMatchObject([{ kind: 'input', tool: 'ask_desk', effect_id: null }]);
  });

  test('asked alike by many runs is one group, apart from other questions', async () => {
    const same = { name: 'ask_alike' };
    await Promise.all([newWait(ledger, same), newWait(ledger, same)]);
    const other = await ledger.newStep([asking('Another?', same)]);
    await ask(other);
    const page = await (await api.request('/v1/interrupts?group_by=scope&kind=input&limit=100')).json();
    const groups = InterruptGroupListView.parse(page).groups.filter(({ tool }) => tool === 'ask_alike');
    expect(groups.map(({ arguments: args, count }) => [args, count]).toSorted()).toStrictEqual([
      [{ text: 'Another?' }, 1],
      [{ text: 'Which order?' }, 2],
    ]);
  });

  test('is answered once; the answer, who gave it and its note stand in its record', async () => {
    const wait = await newWait(ledger);
    const key = randomUUID();
    const response = await resolve(wait, { key, body: { ...FITS, note: 'Looked it up.' } });
    expect(response.status).toBe(200);
    expect(InterruptView.parse(await response.json())).toMatchObject({
      state: 'answered',
      decisions: [
        {
          actor_id: 'olga',
          decision: 'answer',
          authority: 'operator',
          note: 'Looked it up.',
          answer: FITS.answer,
        },
      ],
    });
    const again = await resolve(wait, { key, body: { ...FITS, note: 'Looked it up.' } });
    expect([again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
    expect(await codeOf(await resolve(wait, { key }))).toBe('idempotency_key_reused');
    expect(await codeOf(await resolve(wait))).toBe('interrupt_decided');
    expect(await listed(`run_id=${wait.run.runId}`)).toStrictEqual([]);
    expect(await ask(wait.run)).toBe('settled');
  });

  test('takes what fits the schema it was opened with, and says what does not (case 98)', async () => {
    const wait = await newWait(ledger);
    // A later question of the same name asks for something else.
    await newWait(ledger, { answerSchema: { type: 'number' } });
    const wrong: readonly unknown[] = [
      7,
      {},
      null,
      { order: 7 },
      { order: 'ORD-7', more: 1 },
      'x'.repeat(70_000),
    ];
    for (const answer of wrong) {
      const problem = await problemOf(await resolve(wait, { body: { decision: 'answer', answer } }));
      expect([problem.status, problem.code]).toStrictEqual([422, 'answer_invalid']);
      expect(problem.errors).toMatchObject([{ at: 'body/answer' }]);
    }
    expect((await interruptAt(wait.interruptId)).state).toBe('open');
    expect(await codeOf(await resolve(wait))).toBe('decided');
  });

  test.each([
    [{ decision: 'answer' }, 400, 'invalid_request'],
    [{ ...FITS, approver: 'boss' }, 400, 'invalid_request'],
    [{ decision: 'yes', answer: 1 }, 400, 'invalid_request'],
    [{ answer: {} }, 400, 'invalid_request'],
    [{ decision: 'approve', scope_sha256: 'a'.repeat(64) }, 422, 'decision_mismatch'],
  ])('refuses %j', async (body, status, code) => {
    const wait = await newWait(ledger);
    const problem = await problemOf(await resolve(wait, { body }));
    expect([problem.status, problem.code]).toStrictEqual([status, code]);
    expect((await interruptAt(wait.interruptId)).state).toBe('open');
  });

  test('tells apart expired, answered, superseded, withdrawn, unknown, and one who may not', async () => {
    const wait = await newWait(ledger);
    expect(await codeOf(await resolve(wait, { roles: 'approver requester' }))).toBe('role_required');
    expect(await codeOf(await resolve(wait, { tenant: 'other' }))).toBe('interrupt_not_found');
    expect(await codeOf(await resolve({ interruptId: `int_${'0'.repeat(32)}` }))).toBe('interrupt_not_found');
    const over = await newWait(ledger);
    await runOut(over);
    expect(await listed(`run_id=${over.run.runId}`)).toStrictEqual([]);
    expect(await listed(`state=expired&run_id=${over.run.runId}`)).toHaveLength(1);
    expect((await resolve(over)).status).toBe(410);
    const replaced = await newWait(ledger);
    await ledger.rows(
      `update holdfast.interrupts set state = 'superseded', decided_at = now() where interrupt_id = $1`,
      replaced.interruptId,
    );
    expect(await codeOf(await resolve(replaced))).toBe('interrupt_superseded');
    const ended = await newWait(ledger);
    await submit(ended.run, 'cancel');
    await ended.run.commit(
      { kind: 'move', to: 'waiting_for_input', reason: 'input_needed' },
      { kind: 'control', to: 'active', reason: 'cancel_requested' },
      { kind: 'move', to: 'cancelled', reason: 'cancel_requested' },
    );
    expect((await interruptAt(ended.interruptId)).state).toBe('withdrawn');
    expect(await codeOf(await resolve(ended))).toBe('run_ended');
  });

  test('is answered by no GET and no HEAD', async () => {
    const wait = await newWait(ledger);
    const before = await traces(wait);
    for (const end of ['', '/resolve', '/answer', '/resolve?decision=answer&answer=1']) {
      for (const method of ['GET', 'HEAD']) {
        await api.request(`/v1/interrupts/${wait.interruptId}${end}`, { method });
      }
    }
    expect(await traces(wait)).toStrictEqual(before);
  });

  test('answered twenty times at once through two processes takes one (case 23)', async () => {
    const second = await startTestApi({ databaseUrl: ledger.url });
    const wait = await newWait(ledger);
    const codes = await Promise.all(
      Array.from({ length: 20 }, async (_, n) =>
        codeOf(await resolve(wait, { actor: `person-${n}`, via: n % 2 === 0 ? api : second })),
      ),
    );
    expect(codes.toSorted()).toStrictEqual(['decided', ...Array<string>(19).fill('interrupt_decided')]);
    const decided = (await ledger.events(wait.run.runId)).filter(({ type }) => type === 'interrupt.decided');
    expect(decided).toHaveLength(1);
    await second.close();
  });
});

test('an approval takes no answer', async () => {
  const gate = await newGate(ledger);
  expect(await codeOf(await resolve(gate))).toBe('decision_mismatch');
  expect((await interruptAt(gate.interruptId)).state).toBe('open');
});

test('a model call that only a person can mend shows why, and takes one of two words', async () => {
  const run = await ledger.newRun();
  await run.start();
  await failModel(run, 'billing');
  const [row] = await inputsOf(run);
  const wait = { run, interruptId: row?.interrupt_id ?? '' };
  expect(await interruptAt(wait.interruptId)).toMatchObject({
    ...{ kind: 'input', tool: 'model/desk', slot: null, effect_id: null, required_role: 'operator' },
    scope: { arguments: { reason: 'billing', provider: 'scripted' }, detail: 'The account is empty.' },
    answer_schema: { properties: { action: { enum: ['try_again', 'give_up'] } } },
  });
  const say = (action: string) => resolve(wait, { body: { decision: 'answer', answer: { action } } });
  expect(await codeOf(await say('pay_for_it'))).toBe('answer_invalid');
  expect(await codeOf(await say('try_again'))).toBe('decided');
});
