import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { loadProject, type Project } from '../activities/project/load-project.js';
import { ProjectError } from '../activities/project/project-error.js';
import { answered, callModel, request } from './support/model-calls.js';

// Goal: an operator declares what agents may ask, and a start shows everything that is wrong with it, with its place.

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'holdfast-questions-'));
  writeFileSync(join(dir, 'desk.yaml'), 'replies:\n  - text: Done.\n');
  const pay = { description: 'Pays.', input: { type: 'object' }, class: 'opaque', namespace: 'p' };
  writeFileSync(
    join(dir, 'tools.yaml'),
    JSON.stringify({
      version: 1,
      tools: { pay: { ...pay, url: 'http://127.0.0.1:9/pay', body: 'arguments' } },
    }),
  );
});
afterAll(() => rmSync(dir, { recursive: true }));

const QUESTION = {
  description: 'Asks the desk.',
  answer: { type: 'object', properties: { order: { type: 'string' } } },
  role: 'operator',
};

function write(questions: unknown, tools: unknown = ['pay', 'ask']): string {
  const path = join(dir, 'holdfast.yaml');
  const declared = {
    version: 1,
    models: { desk: { provider: 'scripted', script: 'desk.yaml' } },
    tools: { http: ['tools.yaml'] },
    ...(questions === undefined ? {} : { questions }),
    agents: { desk: { model: 'desk', instructions: { text: 'Work.' }, tools } },
  };
  writeFileSync(path, JSON.stringify(declared, null, 1));
  return path;
}
async function load(questions: unknown, tools?: unknown): Promise<Project> {
  const project = await loadProject(write(questions, tools), {});
  await project.close();
  return project;
}

test('a question is pinned in the version of each agent that lists it, with its defaults', async () => {
  const { agents, catalogue } = await load({ ask: QUESTION });
  expect(agents[0]?.tools.map(({ name }) => name)).toEqual(['pay']);
  expect(agents[0]?.questions).toEqual([
    {
      ...{
        name: 'ask',
        version: expect.stringMatching(/^[0-9a-f]{64}$/) as unknown,
        description: 'Asks the desk.',
      },
      ...{ answerSchema: QUESTION.answer, role: 'operator', expiresSeconds: 86_400, onExpiry: 'tell_model' },
    },
  ]);
  expect(catalogue.list().map(({ name }) => name)).toEqual(['pay']);
});

const CHANGES = [
  ...[{}, { description: 'Other.' }, { answer: {} }, { role: 'approver' }],
  ...[{ expiresSeconds: 5 }, { onExpiry: 'fail' }],
];

test('whatever a question says is part of its version', async () => {
  const versionOf = async (changes: object) =>
    (await load({ ask: { ...QUESTION, ...changes } })).agents[0]?.questions?.[0]?.version;
  const versions: (string | undefined)[] = [];
  for (const changes of CHANGES) versions.push(await versionOf(changes));
  expect(new Set(versions).size).toBe(CHANGES.length);
});

test('an agent that asks nobody has the digest that it had before there were questions', async () => {
  expect((await load({ ask: QUESTION }, ['pay'])).digest).toBe((await load(undefined, ['pay'])).digest);
});

describe('is refused, at its place:', () => {
  test.each([
    [
      'an answer whose schema does not compile',
      { ask: { ...QUESTION, answer: { type: 'text' } } },
      undefined,
      /does not compile/,
    ],
    ['a question without a role', { ask: { ...QUESTION, role: undefined } }, undefined, /role/],
    ['a role that nobody has', { ask: { ...QUESTION, role: 'boss' } }, undefined, /role/],
    [
      'a wait of more than 90 days',
      { ask: { ...QUESTION, expiresSeconds: 7_776_001 } },
      undefined,
      /expiresSeconds/,
    ],
    ['a question named like a tool', { pay: QUESTION }, ['pay'], /a tool pay is declared too/],
    [
      'an approval of a question',
      { ask: QUESTION },
      [{ name: 'ask', approval: 'required' }],
      /which nobody approves/,
    ],
    ['a question listed twice', { ask: QUESTION }, ['ask', 'ask'], /listed twice/],
    ['a question that is not there', {}, ['ask'], /there is no tool ask/],
  ])('%s', async (_, questions, tools, expected) => {
    const failure = await load(questions, tools).catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(ProjectError);
    expect((failure as ProjectError).message).toMatch(expected);
    expect((failure as ProjectError).message).toMatch(/holdfast\.yaml:\d+:\d+/);
  });
});

test('the refund desk asks which order is meant, and reads the one that is named', async () => {
  const path = fileURLToPath(new URL('../examples/refund-desk/holdfast.yaml', import.meta.url));
  const project = await loadProject(path, { REFUND_DESK_PROVIDER: '127.0.0.1:1', REFUND_DESK_REPORTS: dir });
  await project.close();
  expect(project.agents[0]?.questions?.map(({ name, role }) => [name, role])).toEqual([
    ['ask_which_order', 'requester'],
  ]);
  const model = project.agents[0]?.model;
  if (model === undefined) throw new Error('the desk has no model');
  const user = { role: 'user', text: 'I want a refund' } as const;
  const asked = answered(await callModel(model, project.dir, request({ messages: [user] })));
  expect(asked.parts).toMatchObject([
    { type: 'text' },
    { type: 'raw_tool_call', toolName: 'ask_which_order' },
  ]);
  const called = { callId: 'c0', toolName: 'ask_which_order' };
  const messages = [
    user,
    { role: 'assistant', parts: [{ type: 'tool_call', ...called, arguments: { text: 'Which?' } }] },
    { role: 'tool', results: [{ ...called, text: '{"order_id":"ORD-1003"}', isError: false }] },
  ] as const;
  const read = answered(await callModel(model, project.dir, request({ messages })));
  expect(read.parts[1]).toMatchObject({ toolName: 'read_order', argumentsText: '{"order_id":"ORD-1003"}' });
});
