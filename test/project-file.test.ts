import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { ModelProfile } from '../shared/domain/agents.js';
import { loadProject } from '../activities/project/load-project.js';
import type { Project } from '../activities/project/load-project.js';
import { pinMcpTools } from '../activities/project/pin-mcp-tools.js';
import { ProjectError } from '../activities/project/project-error.js';

let root: string;
let count = 0;
const toolsModule = pathToFileURL(resolve('activities/tools/define-tool.ts')).href;
const filesystem = resolve('node_modules/@modelcontextprotocol/server-filesystem/dist/index.js');

beforeAll(() => {
  root = realpathSync(mkdtempSync(join(tmpdir(), 'holdfast-project-')));
});
afterAll(() => {
  rmSync(root, { recursive: true });
});

const PROJECT = `version: 1
models:
  desk: { provider: scripted, script: models/desk.yaml }
  real: { provider: openai-compatible, baseUrl: '\${env:MODEL:-http://127.0.0.1:1/v1}', model: m, apiKeyEnv: KEY }
tools:
  functions: [tools/orders.ts]
  http: [tools/payments.yaml]
agents:
  desk-agent:
    model: desk
    instructions: prompts/desk.md
    tools:
      - read_order
      - note_order
      - { name: pay, approval: not_required }
  talker:
    model: real
    instructions: { text: Only talk. }
    limits: { stepsMax: 3 }
`;

const FILES: Readonly<Record<string, string>> = {
  'holdfast.yaml': PROJECT,
  'models/desk.yaml': 'replies:\n  - text: Done.\n',
  'prompts/desk.md': 'You are the desk.\n',
  'tools/orders.ts': `import { defineTool } from '${toolsModule}';
const read = { name: 'read_order', description: 'Reads.', effect: { class: 'read' }, run: () => 1 };
const input = { type: 'object' };
export const readOrder = defineTool({ ...read, input });
export default [
  readOrder,
  defineTool({ name: 'note_order', description: 'Notes.', input, effect: { class: 'opaque' }, run: () => 2 }),
];
`,
  'tools/payments.yaml': `version: 1
tools:
  pay:
    description: Pays.
    input: { type: object, properties: { amount: { type: integer } }, required: [amount] }
    class: keyed
    namespace: payments
    keyed: { windowSeconds: 60, resendsMax: 3 }
    compensation: note_order
    url: http://\${env:PAY_HOST:-127.0.0.1:9999}/pay
    keyHeader: Idempotency-Key
    body: arguments
`,
};

/** Writes a project of its own; a null takes a file away. */
function write(changes: Readonly<Record<string, string | null>> = {}): string {
  count += 1;
  const dir = join(root, `p${count}`);
  for (const [name, text] of Object.entries({ ...FILES, ...changes })) {
    if (text === null) continue;
    mkdirSync(dirname(join(dir, name)), { recursive: true });
    writeFileSync(join(dir, name), text);
  }
  return join(dir, 'holdfast.yaml');
}

async function load(changes: Readonly<Record<string, string | null>> = {}): Promise<Project> {
  return loadProject(write(changes), {});
}

/** The problems as `file:line:column  message`, the folder left out. */
async function problemsOf(changes: Readonly<Record<string, string | null>>): Promise<string[]> {
  const path = write(changes);
  try {
    await (await loadProject(path, {})).close();
  } catch (error) {
    if (error instanceof ProjectError) return error.message.replaceAll(`${dirname(path)}/`, '').split('\n');
    throw error;
  }
  return [];
}

/** The project with a delegate that `desk-agent` may start. */
const delegating = (name: string, settings: string, listed = name) => ({
  'holdfast.yaml': PROJECT.replace('agents:', `delegates:\n  ${name}: ${settings}\nagents:`).replace(
    '- note_order',
    `- note_order\n      - ${listed}`,
  ),
});
const edit = (from: string, to: string) => ({ 'holdfast.yaml': PROJECT.replace(from, to) });
const editPay = (from: string, to: string) => ({
  'tools/payments.yaml': (FILES['tools/payments.yaml'] ?? '').replace(from, to),
});
/** `pay` with this compensation, beside the tool `undo` that needs these arguments. */
const undoneBy = (compensation: string, needs: string) => {
  const pay = FILES['tools/payments.yaml'] ?? '';
  const undo = pay
    .slice(pay.indexOf('  pay:'))
    .replace('  pay:', '  undo:')
    .replace('    compensation: note_order\n', '')
    .replace(
      /input: .*/,
      `input: { type: object, additionalProperties: false, required: ${needs}, properties: { of: {}, amount: {} } }`,
    );
  const properties = 'properties: { amount: { type: integer }, maybe: { type: string } }';
  const changed = pay
    .replace('properties: { amount: { type: integer } }', properties)
    .replace('compensation: note_order', `compensation: ${compensation}`);
  return { 'tools/payments.yaml': changed + undo };
};

describe('a project', () => {
  test('becomes agents and a catalogue; effects ask a person unless the file says otherwise', async () => {
    const project = await load();
    expect(project.agents.map(({ name }) => name)).toEqual(['desk-agent', 'talker']);
    const [desk, talker] = project.agents;
    expect(desk?.instructions).toBe('You are the desk.\n');
    expect(desk?.model).toMatchObject({ name: 'desk', provider: 'scripted', model: 'models/desk.yaml' });
    expect(desk?.tools.map(({ name, approval }) => [name, approval])).toEqual([
      ['read_order', 'not_required'],
      ['note_order', 'required'],
      ['pay', 'not_required'],
    ]);
    expect(desk?.limits).toEqual({ stepsMax: 40, toolCallsMax: 60, wallClockSecondsMax: 3600 });
    expect(talker).toMatchObject({ instructions: 'Only talk.', limits: { stepsMax: 3, toolCallsMax: 60 } });
    expect(talker?.model).toMatchObject({ baseUrl: 'http://127.0.0.1:1/v1', apiKeyEnv: 'KEY' });
    expect(project.catalogue.list().map(({ name }) => name)).toEqual(['note_order', 'pay', 'read_order']);
    expect(desk?.tools[2]).toMatchObject({ version: project.catalogue.get('pay')?.version });
    expect(project.dir).toMatch(/p\d+$/);
    await project.close();
  });

  test('lets an agent start another, with what it may use of its own limits; agents may start each other', async () => {
    const project = await load(
      delegating('talk', '{ agent: talker, description: Talks., share: { steps: 0.25 } }'),
    );
    const [desk, talker] = project.agents;
    expect(desk?.delegates).toEqual([
      {
        ...{ name: 'talk', agent: 'talker', description: 'Talks.', onCancel: 'cancel', parallel: false },
        share: { steps: 0.25, toolCalls: 0.5, wallClock: 1 },
        version: expect.stringMatching(/^[0-9a-f]{64}$/) as unknown,
      },
    ]);
    // An agent that starts nobody is the same version as before there were delegates.
    expect(talker).not.toHaveProperty('delegates');
    const itself = await load(delegating('again', '{ agent: desk-agent, description: Once more. }'));
    expect(itself.agents[0]?.delegates?.[0]?.agent).toBe('desk-agent');
  });

  test('pins the price of a model where it says one, in micro-units of a currency', async () => {
    const price = (currency: string) =>
      `, price: { currency: ${currency}, inputPerMillion: 3, outputPerMillion: 15 } }`;
    const script = 'script: models/desk.yaml';
    const [desk, talker] = (await load(edit(`${script} }`, script + price('USD')))).agents;
    expect(desk?.model.price).toEqual({ currency: 'USD', inputPerMillion: 3, outputPerMillion: 15 });
    expect(talker?.model).not.toHaveProperty('price');
    const [problem] = await problemsOf(edit(`${script} }`, script + price('dollars')));
    expect(problem).toContain('a currency has three capital letters');
  });

  test('has a digest that changes with what it says and not with where it lies or runs', async () => {
    const { digest } = await load();
    expect((await load()).digest).toBe(digest);
    expect((await load({ 'prompts/desk.md': 'You are another.' })).digest).not.toBe(digest);
    expect((await load(editPay('resendsMax: 3', 'resendsMax: 4'))).digest).not.toBe(digest);
    const elsewhere = await loadProject(write(), { PAY_HOST: 'pay.example.com' });
    expect(elsewhere.digest).toBe(digest);
  });

  test('runs on another model where one is given, and then needs no script', async () => {
    const modelOverride: ModelProfile = {
      name: 'other',
      provider: 'openai',
      model: 'm',
      baseUrl: null,
      apiKeyEnv: 'KEY',
      maxOutputTokens: 10,
      timeoutSeconds: 10,
      short: false,
    };
    const project = await loadProject(write({ 'models/desk.yaml': null }), {}, { modelOverride });
    expect(project.agents.map(({ model }) => model.name)).toEqual(['other', 'other']);
  });
});

describe('a problem is told with its place', () => {
  test.each<[string, Readonly<Record<string, string | null>>, RegExp]>([
    ['no such file', { 'holdfast.yaml': null }, /^holdfast\.yaml:1:1 {2}there is no such file — /],
    [
      'broken YAML',
      { 'holdfast.yaml': 'version: 1\nmodels: [' },
      /^holdfast\.yaml:2:\d+ {2}.*correct the YAML/,
    ],
    [
      'a name twice',
      edit('  desk: {', '  desk: 1\n  desk: {'),
      /^holdfast\.yaml:[34]:\d+ {2}Map keys must be unique/,
    ],
    [
      'an unknown setting',
      edit('    model: desk\n', '    model: desk\n    colour: red\n'),
      /^holdfast\.yaml:11:13 {2}there is no setting "colour"/,
    ],
    [
      'a missing setting',
      edit(', script: models/desk.yaml', ''),
      /^holdfast\.yaml:3:3 {2}"script" is missing — add it/,
    ],
    [
      'a wrong type',
      edit('stepsMax: 3', 'stepsMax: three'),
      /^holdfast\.yaml:19:25 {2}"stepsMax" must be of type/,
    ],
    [
      'a number out of range',
      edit('stepsMax: 3', 'stepsMax: 0'),
      /^holdfast\.yaml:19:25 {2}"stepsMax" is too small/,
    ],
    [
      'an unknown provider',
      edit('provider: scripted', 'provider: oracle'),
      /^holdfast\.yaml:3:21 {2}"provider" must be scripted or openai-compatible or openai/,
    ],
    [
      'an unknown tool',
      edit('- note_order', '- note_odrer'),
      /^holdfast\.yaml:14:9 {2}there is no tool note_odrer — /,
    ],
    [
      'a tool listed twice',
      edit('- note_order', '- read_order'),
      /^holdfast\.yaml:14:9 {2}read_order is listed twice — /,
    ],
    [
      'an unknown model',
      edit('model: real', 'model: rael'),
      /^holdfast\.yaml:17:12 {2}there is no model rael — /,
    ],
    [
      'a delegate of an unknown agent',
      delegating('talk', '{ agent: tlaker, description: Talks. }'),
      /^holdfast\.yaml:9:18 {2}there is no agent tlaker — /,
    ],
    [
      'a delegate that is named like a tool',
      delegating('pay', '{ agent: talker, description: Talks. }', 'read_orders'),
      /^holdfast\.yaml:9:3 {2}a tool pay is declared too — /,
    ],
    [
      'an approval of a delegate',
      delegating('talk', '{ agent: talker, description: Talks. }', '{ name: talk, approval: required }'),
      /^holdfast\.yaml:17:9 {2}talk is another agent, whose own tools are approved — /,
    ],
    [
      'a share of more than all',
      delegating('talk', '{ agent: talker, description: Talks., share: { steps: 2 } }'),
      /^holdfast\.yaml:9:\d+ {2}"steps" is too big/,
    ],
    [
      'a rule for the cancel that does not exist',
      delegating('talk', '{ agent: talker, description: Talks., onCancel: wait }'),
      /^holdfast\.yaml:9:\d+ {2}"onCancel" must be cancel or leave/,
    ],
    [
      'a missing prompt',
      { 'prompts/desk.md': null },
      /^holdfast\.yaml:11:19 {2}prompts\/desk\.md: there is no such file/,
    ],
    [
      'an empty prompt',
      { 'prompts/desk.md': ' \n' },
      /^holdfast\.yaml:11:19 {2}prompts\/desk\.md is empty — /,
    ],
    ['a missing script', { 'models/desk.yaml': null }, /^holdfast\.yaml:3:\d+ {2}the script cannot be used/],
    [
      'a broken script',
      { 'models/desk.yaml': 'replies: 7\n' },
      /^holdfast\.yaml:3:\d+ {2}the script cannot be used: .*desk\.yaml:1/,
    ],
    [
      'a missing module',
      { 'tools/orders.ts': null },
      /^holdfast\.yaml:6:15 {2}tools\/orders\.ts: it cannot be imported/,
    ],
    [
      'a module without tools',
      { 'tools/orders.ts': 'export const a = 1;' },
      /^holdfast\.yaml:6:15 {2}tools\/orders\.ts: it exports no tool/,
    ],
    [
      'a missing tool file',
      { 'tools/payments.yaml': null },
      /^tools\/payments\.yaml:1:1 {2}there is no such file/m,
    ],
    [
      'an HTTP tool without a policy',
      editPay('    keyed: { windowSeconds: 60, resendsMax: 3 }\n', ''),
      /^tools\/payments\.yaml:6:12 {2}class keyed needs `keyed` — /,
    ],
    [
      'a wrong setting of an HTTP tool',
      editPay('windowSeconds: 60', 'windowSeconds: no'),
      /^tools\/payments\.yaml:8:29 {2}"windowSeconds"/,
    ],
    [
      'a bad schema',
      editPay('type: integer', 'type: int'),
      /^tools\/payments\.yaml:5:\d+ {2}the schema does not compile/,
    ],
    [
      'a compensation that is no tool',
      editPay('note_order', 'undo'),
      /^tools\/payments\.yaml:9:19 {2}pay: its compensation undo is no tool/,
    ],
    [
      'a compensation that needs what the call may lack',
      undoneBy('undo', '[amount, of]'),
      /^tools\/payments\.yaml:9:19 {2}pay: its compensation undo needs "of", which pay need not be given/,
    ],
    [
      'a rule with a placeholder that is no argument',
      undoneBy('{ tool: undo, arguments: { of: "{nothing}" } }', '[of]'),
      /^tools\/payments\.yaml:9:\d+ {2}pay: \{nothing\} is no argument of pay/,
    ],
    [
      'a rule for an argument that the compensation does not take',
      undoneBy('{ tool: undo, arguments: { of: "{$reference}", why: x } }', '[of]'),
      /^tools\/payments\.yaml:9:\d+ {2}pay: undo takes no argument "why"/,
    ],
    [
      'a rule that leaves out what the compensation needs',
      undoneBy('{ tool: undo, arguments: { amount: "{amount}" } }', '[of]'),
      /^tools\/payments\.yaml:9:\d+ {2}pay: undo needs "of" — say where it comes from/,
    ],
    [
      'a rule that makes what is needed from what may be left out',
      undoneBy('{ tool: undo, arguments: { of: "{maybe}" } }', '[of]'),
      /^tools\/payments\.yaml:9:\d+ {2}pay: undo needs "of", and pay may be called without "maybe"/,
    ],
    [
      'a compensation of no known form',
      undoneBy('{ tool: undo }', '[of]'),
      /^tools\/payments\.yaml:9:\d+ {2}"arguments" is missing/,
    ],
    [
      'a variable that is not set',
      editPay('${env:PAY_HOST:-127.0.0.1:9999}', '${env:PAY_HOST}'),
      /^tools\/payments\.yaml:10:10 {2}The variable PAY_HOST is not set/,
    ],
    [
      'two tools of one name',
      editPay('  pay:\n', '  read_order:\n'),
      /^tools\/payments\.yaml:3:3 {2}a tool read_order is declared at .*holdfast\.yaml:6 too — /m,
    ],
    [
      'a server without pins',
      edit(
        '  http: [',
        '  mcp: { s: { transport: stdio, command: node, tools: { t: { class: read } } } }\n  http: [',
      ),
      /^holdfast\.yaml:7:\d+ {2}s\/t is not pinned in mcp-pins\.json — /,
    ],
    [
      'pins changed by hand',
      {
        ...edit(
          '  http: [',
          '  mcp: { s: { transport: stdio, command: node, tools: { t: { class: read } } } }\n  http: [',
        ),
        'mcp-pins.json': '{"version":2}',
      },
      /^mcp-pins\.json:1:1 {2}it is no lock file/,
    ],
  ])('%s', async (_what, changes, expected) => {
    const problems = await problemsOf(changes);
    expect(problems.join('\n')).toMatch(expected);
  });

  test('a tool that is declared wrongly is not missed as well', async () => {
    const problems = await problemsOf(editPay('windowSeconds: 60', 'windowSeconds: no'));
    expect(problems).toHaveLength(1);
    const badTool = `export default defineTool({ name: 'a b', description: '', input: {}, effect: {} });`;
    const module = `import { defineTool } from '${toolsModule}';\n${badTool}`;
    const [first] = await problemsOf({ 'tools/orders.ts': module });
    expect(first).toMatch(
      /6:15 {2}tools\/orders\.ts: a b: name: .*; a b: description: .*; a b: effect\.class: /,
    );
  });

  test('all of them at once, from every file', async () => {
    const problems = await problemsOf({
      ...edit('model: real', 'model: rael'),
      ...editPay('note_order', 'undo'),
      'prompts/desk.md': null,
    });
    expect(problems).toHaveLength(3);
    expect(problems.every((line) => / — /.test(line))).toBe(true);
  });

  test('a file whose aliases multiply past all measure is refused', async () => {
    const rows = Array.from(
      { length: 30 },
      (_, i) => `  a${i}: &a${i} [${i === 0 ? 'x' : `*a${i - 1},*a${i - 1},*a${i - 1}`}]`,
    );
    const problems = await problemsOf({ 'holdfast.yaml': `version: 1\nmodels:\n${rows.join('\n')}\n` });
    expect(problems[0]).toMatch(/alias/);
  });
});

describe('pinning', () => {
  const server = (tools: string) => `  mcp:
    files: { transport: stdio, command: '${process.execPath}', args: ['${filesystem}', '.'], tools: ${tools} }
  http: [`;

  test('writes what the server offers; the project then loads and its tool works', async () => {
    const path = write(
      edit('  http: [', server('{ write_file: { as: write_note, class: opaque, approval: not_required } }')),
    );
    const text = readFileSync(path, 'utf8').replace('- note_order', '- note_order\n      - write_note');
    writeFileSync(path, text);
    await expect(loadProject(path, {})).rejects.toThrow(/files\/write_file is not pinned/);
    expect(await pinMcpTools(path, {})).toMatchObject([{ tool: 'write_file', change: 'added' }]);
    expect(await pinMcpTools(path, {})).toMatchObject([{ tool: 'write_file', change: 'same' }]);
    const project = await loadProject(path, {});
    try {
      expect(project.agents[0]?.tools[2]).toMatchObject({ name: 'write_note', approval: 'not_required' });
      const answer = await project.catalogue.get('write_note')?.call({
        arguments: { path: join(dirname(path), 'note.txt'), content: 'kept' },
        idempotencyKey: 'key-0123456789abcdef',
        effectId: 'eff_1',
        runId: 'run_1',
        tenantId: 'default',
        attempt: 1,
        signal: new AbortController().signal,
        timeoutMs: 20_000,
        progress: () => undefined,
      });
      expect(answer?.kind).toBe('succeeded');
      expect(readFileSync(join(dirname(path), 'note.txt'), 'utf8')).toBe('kept');
    } finally {
      await project.close();
    }
  });

  test('refuses a tool that the server does not offer, and writes nothing', async () => {
    const path = write(edit('  http: [', server('{ write_fiel: { class: opaque } }')));
    await expect(pinMcpTools(path, {})).rejects.toThrow(
      /files offers no write_fiel — it offers .*write_file/,
    );
    expect(() => readFileSync(join(dirname(path), 'mcp-pins.json'))).toThrow(/ENOENT/);
  });
});
