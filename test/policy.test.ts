import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { loadProject } from '../activities/project/load-project.js';
import { ProjectError } from '../activities/project/project-error.js';
import { planCalls } from '../activities/plan-calls.js';
import type { AgentManifest } from '../shared/domain/agents.js';
import type { JsonObject } from '../shared/domain/json.js';
import { askedOf, fitsGlob, type PolicyRule } from '../shared/domain/policy.js';

// Goal: a rule asks where it says so and where nobody can tell, and takes no care away; a slip of the pen in one is seen
// at the start, with its line (SPEC 4.1). Method: rules against calls, project files against the loader.

const rule = (when: PolicyRule['when'], changes: Partial<PolicyRule> = {}): PolicyRule => ({
  ...{ name: 'rule', sha256: 'a'.repeat(64), when, approval: 'required', quorum: 1 },
  ...changes,
});
const FIVE = { amount: 5 };
const CALL = {
  tenantId: 'acme',
  tool: 'refund_payment',
  effectClass: 'keyed',
  arguments: { amount: 5 },
} as const;

describe('a rule', () => {
  // prettier-ignore
  test.each<readonly [asks: boolean, when: PolicyRule['when'], args: JsonObject]>([
    [true,  {}, FIVE],
    [true,  { tools: ['refund_payment'] }, FIVE],
    [true,  { tools: ['send_mail', 'refund_*'] }, FIVE],
    [false, { tools: ['refund'] }, FIVE],
    [false, { tools: ['Refund_*'] }, FIVE],
    [true,  { classes: ['opaque', 'keyed'] }, FIVE],
    [false, { classes: ['opaque'] }, FIVE],
    [true,  { tenants: ['ac*'] }, FIVE],
    [false, { tenants: ['other'] }, FIVE],
    [false, { tools: ['refund_*'], tenants: ['other'] }, FIVE],
    [true,  { arguments: [{ at: '/amount', above: 4 }] }, FIVE],
    [false, { arguments: [{ at: '/amount', above: 5 }] }, FIVE],
    [true,  { arguments: [{ at: '/amount', atLeast: 5 }] }, FIVE],
    [false, { arguments: [{ at: '/amount', below: 5 }] }, FIVE],
    [true,  { arguments: [{ at: '/amount', atMost: 5 }] }, FIVE],
    [false, { arguments: [{ at: '/amount', above: 1 }, { at: '/amount', below: 3 }] }, FIVE],
    [true,  { arguments: [{ at: '/to', equals: 'x' }] },                   { to: 'x' }],
    [false, { arguments: [{ at: '/to', equals: 'x' }] },                   { to: 'y' }],
    [false, { arguments: [{ at: '/to', equals: 'x' }] },                   {}],
    [true,  { arguments: [{ at: '/to', equals: { b: 1, a: [2] } }] },      { to: { a: [2], b: 1 } }],
    [true,  { arguments: [{ at: '/to', oneOf: ['x', null] }] },            { to: null }],
    [false, { arguments: [{ at: '/to', noneOf: ['x'] }] },                 { to: 'x' }],
    [true,  { arguments: [{ at: '/to', noneOf: ['x'] }] },                 { to: 'X' }],
    [true,  { arguments: [{ at: '/lines/1/sum', above: 4 }] },             { lines: [{ sum: 1 }, { sum: 5 }] }],
    // What cannot be compared cannot be shown to be harmless.
    [true,  { arguments: [{ at: '/amount', above: 50 }] },                 { amount: '5' }],
    [true,  { arguments: [{ at: '/amount', above: 50 }] },                 {}],
    [true,  { arguments: [{ at: '/amount', above: 50 }] },                 { amount: [5] }],
    [true,  { arguments: [{ at: '/to', noneOf: ['x'] }] },                 {}],
    [true,  { arguments: [{ at: '/toString', above: 1 }] },                {}],
  ])('asks (%s) when %j meets %j', (asks, when, args) => {
    expect(askedOf([rule(when)], { ...CALL, arguments: args }) !== null).toBe(asks);
  });

  test('beside others adds care and takes none away', () => {
    const [b, c, d] = ['b', 'c', 'd'].map((letter) => letter.repeat(64)) as [string, string, string];
    const policy = [
      rule({}, { name: 'two', sha256: b, quorum: 2, expiresSeconds: 600 }),
      rule({ tools: ['other'] }, { quorum: 9, role: 'operator' }),
      rule({}, { name: 'boss', sha256: c, role: 'admin' }),
      rule({}, { name: 'soon', sha256: d, role: 'releaser', expiresSeconds: 60 }),
    ];
    expect(askedOf(policy, CALL)).toStrictEqual({
      ...{ quorum: 2, role: 'admin', expiresSeconds: 60 },
      rules: [
        { name: 'two', sha256: b },
        { name: 'boss', sha256: c },
        { name: 'soon', sha256: d },
      ],
    });
    expect(askedOf([], CALL)).toBeNull();
  });

  test.each([
    ['*', '', true],
    ['a*c', 'abbc', true],
    ['a*c', 'abcd', false],
    ['a.c', 'abc', false],
    ['**', 'x', true],
    ['a*', 'ba', false],
  ])('reads the glob %j on %j as %s', (glob, text, fits) => {
    expect(fitsGlob(glob, text)).toBe(fits);
  });
});

let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'holdfast-policy-'));
  const tools = pathToFileURL(resolve('activities/tools/define-tool.ts')).href;
  await writeFile(
    join(root, 'tools.ts'),
    `import { defineTool } from '${tools}';
const refund = {
  type: 'object', additionalProperties: false, required: ['amount_cents'],
  properties: { amount_cents: { type: 'integer' }, lines: { type: 'array', items: { type: 'object', properties: { sku: { type: 'string' } } } } },
};
const keyed = { windowSeconds: 60, resendsMax: 1 };
export default [
  defineTool({ name: 'refund_payment', description: 'Refunds.', input: refund, effect: { class: 'keyed', keyed }, run: () => 1 }),
  defineTool({ name: 'read_order', description: 'Reads.', input: { type: 'object' }, effect: { class: 'read' }, run: () => 1 }),
];
`,
  );
});
afterAll(async () => {
  await rm(root, { recursive: true });
});

const HEAD = `version: 1
models: { m: { provider: openai, model: m } }
tools: { functions: [tools.ts] }
agents:
  desk: { model: m, instructions: { text: Go. }, tools: [{ name: refund_payment, approval: not_required }] }
  reader: { model: m, instructions: { text: Go. }, tools: [read_order] }
policy:
`;
/** The line of the first rule. */
const FIRST = 8;

async function load(policy: string): Promise<readonly AgentManifest[]> {
  const path = join(root, 'holdfast.yaml');
  await writeFile(path, HEAD + policy);
  const project = await loadProject(path, {});
  await project.close();
  return project.agents;
}
async function problemsOf(policy: string): Promise<string[]> {
  try {
    await load(policy);
  } catch (error) {
    if (error instanceof ProjectError) {
      return error.problems.map(({ line, message }) => `${line - FIRST} ${message}`);
    }
    throw error;
  }
  return [];
}

const LARGE = `  - name: large-refunds
    when: { tools: [refund_*], arguments: [{ at: /amount_cents, above: 50000 }] }
    approval: required
    quorum: 2
    expiresSeconds: 600
`;

describe('the policy of a project', () => {
  test('is pinned with each agent that it can concern, under the digest of what it says', async () => {
    const [desk, reader] = await load(LARGE);
    expect(desk?.policy).toMatchObject([
      {
        ...{ name: 'large-refunds', approval: 'required', quorum: 2, expiresSeconds: 600 },
        ...{ sha256: expect.stringMatching(/^[0-9a-f]{64}$/) as unknown },
        when: { tools: ['refund_*'], arguments: [{ at: '/amount_cents', above: 50_000 }] },
      },
    ]);
    expect(reader).not.toHaveProperty('policy');
    const [other] = await load(LARGE.replace('50000', '50001'));
    expect(other?.policy?.[0]?.sha256).not.toBe(desk?.policy?.[0]?.sha256);
  });

  test('asks about a call when it is planned, whatever the agent’s file says, and never the other way', async () => {
    const [desk] = await load(LARGE);
    const plan = (args: JsonObject) =>
      planCalls(
        {
          parts: [
            {
              ...{ type: 'raw_tool_call', providerCallId: 'c1', toolName: 'refund_payment' },
              argumentsText: JSON.stringify(args),
            },
          ],
          ...{ stopReason: 'tool_calls', requestId: null, modelId: 'm', warnings: [] },
          usage: { inputTokens: 0, outputTokens: 0, cachedInputTokens: 0, reasoningTokens: 0 },
        },
        desk!,
        { effectRules: {}, toolCallsLeft: 5, tenantId: 'acme', agent: 'desk', agentVersion: 'a'.repeat(64) },
        { runId: 'run_1', turn: 1, step: 1, usedCallIds: new Set() },
      ).plan[0];
    expect(plan({ amount_cents: 50_000 })).toMatchObject({ policy: { approval: 'not_required' } });
    expect(plan({ amount_cents: 50_000 })).not.toHaveProperty('policy.asked');
    expect(plan({ amount_cents: 50_001 })).toMatchObject({
      policy: {
        ...{ approval: 'required', timeoutSeconds: 30 },
        asked: {
          ...{ quorum: 2, expiresSeconds: 600 },
          rules: [{ name: 'large-refunds', sha256: desk?.policy?.[0]?.sha256 }],
        },
      },
    });
  });

  // prettier-ignore
  test.each<readonly [policy: string, problem: string]>([
    ['  - { name: a, approval: not_required }\n',               '0 "approval" must be required — correct it'],
    ['  - { name: a, approval: required, role: boss }\n',       '0 "role" must be approver or operator or releaser or admin — correct it'],
    ['  - { name: a, approval: required, quorum: 0 }\n',        '0 "quorum" is too small: at least 1 — correct it'],
    ['  - { name: a b, approval: required }\n',                 '0 a name has 1 to 64 letters, digits, _ or -'],
    ['  - approval: required\n',                                '0 "name" is missing — add it'],
    ['  - { name: a, approval: required, waive: true }\n',      '0 there is no setting "waive" here — remove it or correct its name'],
    ['  - { name: a, approval: required }\n  - name: a\n    approval: required\n', '1 two rules are named a — rename one of them'],
    ['  - name: a\n    approval: required\n    when:\n      tools:\n        - refund_payment\n        - refunds_*\n', '5 no tool of the project is named refunds_* — correct it, or the rule never asks'],
    ['  - name: a\n    approval: required\n    when:\n      classes: [safe]\n', '3 "0" must be read or keyed or queryable or opaque — correct it'],
    ['  - name: a\n    approval: required\n    when:\n      tools: [refund_payment]\n      arguments:\n        - { at: amount, above: 5 }\n', '5 that is no JSON pointer — write /name, or /list/0/name'],
    ['  - name: a\n    approval: required\n    when:\n      tools: [refund_payment]\n      arguments:\n        - { at: /amount, above: 5 }\n', '5 no tool of this rule takes an argument /amount — correct the pointer'],
    ['  - name: a\n    approval: required\n    when:\n      tools: [refund_payment]\n      arguments:\n        - { at: /lines/0/sum, above: 5 }\n', '5 no tool of this rule takes an argument /lines/0/sum — correct the pointer'],
    ['  - name: a\n    approval: required\n    when:\n      arguments:\n        - { at: /amount_cents }\n', '4 a test compares once — write one of equals, oneOf, noneOf, above, atLeast, below, atMost'],
    ['  - name: a\n    approval: required\n    when:\n      arguments:\n        - { at: /amount_cents, above: 1, below: 2 }\n', '4 a test compares once — write one of equals, oneOf, noneOf, above, atLeast, below, atMost'],
  ])('that is wrong is refused with its line: %j', async (policy, problem) => {
    expect(await problemsOf(policy)).toStrictEqual([problem]);
  });

  test.each([
    '  - { name: a, approval: required }\n',
    '  - { name: a, approval: required, when: { classes: [opaque], tenants: ["*"] } }\n',
    '  - { name: a, approval: required, when: { arguments: [{ at: /anything, above: 5 }] } }\n',
    '  - { name: a, approval: required, when: { tools: [refund_payment], arguments: [{ at: /lines/0/sku, equals: null }] } }\n',
  ])('that is right is taken: %j', async (policy) => {
    expect(await problemsOf(policy)).toStrictEqual([]);
  });
});
