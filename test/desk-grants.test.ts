import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import type { ToolManifest } from '../shared/domain/agents.js';
import { readManifest } from '../shared/ledger/admission.js';
import { grantRole, revokeRole } from '../shared/ledger/role-grants.js';
import { giveStandingGrant } from '../shared/ledger/standing-grants.js';
import { brokenControl, decide, untilGated, type Wait, waits } from './support/desk-world.js';
import { judge } from './support/judge.js';
import { arrived, checkRun } from './support/run-checks.js';
import { call, DONE, reply, script, when } from './support/scripts.js';
import { startTestApi } from './support/test-api.js';
import { keyOf, startWorld, type World } from './support/world.js';

// Goal: what a policy asks, who may still answer and what was allowed beforehand hold for a run as a whole, worker and
// workflow included. Method: a project with rules, people with roles in the ledger, a real target.

const amount = {
  type: 'object',
  additionalProperties: false,
  required: ['note'],
  properties: { note: { type: 'string' }, amount_cents: { type: 'integer' } },
};
const pay = (cents: number, note = '{{input}}') => call('pay', { note, amount_cents: cents });

let world: World;
beforeAll(async () => {
  world = await startWorld({
    httpTools: { pay: { input: amount } },
    policy: [
      {
        ...{ name: 'large-payments', approval: 'required', quorum: 2, expiresSeconds: 600 },
        when: { tools: ['pa*'], arguments: [{ at: '/amount_cents', above: 50_000 }] },
      },
      { name: 'mail-of-acme', approval: 'required', when: { tools: ['mail'], tenants: ['acme'] } },
      {
        ...{ name: 'huge-payments', approval: 'required', role: 'releaser' },
        when: { tools: ['pay'], arguments: [{ at: '/amount_cents', above: 1_000_000 }] },
      },
    ],
    script: script(
      when('small', reply(pay(50_000)), DONE),
      when('large', reply(pay(50_001)), DONE),
      when('both', reply(pay(60_000, 'a {{input}}'), pay(3, 'b {{input}}')), DONE),
      when('mail', reply('mail'), DONE),
      when('two', reply(call('mail', { note: '1 {{input}}' }), call('mail', { note: '2 {{input}}' })), DONE),
    ),
  });
});

const start = (word: string, changes: Parameters<World['run']>[0] = {}) =>
  world.run({ input: `${word} ${randomUUID()}`, ...changes });

async function toolOf(name: string): Promise<ToolManifest> {
  const [agent] = await world.rows<{ agent_version: string }>('select agent_version from holdfast.agents');
  const manifest = await readManifest(world.db, 'desk', agent!.agent_version);
  return manifest!.tools.find((tool) => tool.name === name)!;
}

async function completed(runId: string): Promise<void> {
  await world.waitFor(runId, 'completed');
  await checkRun(world, runId);
}

describe('a rule of the policy', () => {
  test('asks above its amount, of two people, though the agent’s file asks nobody', async () => {
    const small = await start('small');
    await completed(small);
    expect(await waits(world, small)).toEqual([]);

    const runId = await start('large');
    const [wait] = await untilGated(world, runId);
    expect(wait).toMatchObject({ quorum: 2 });
    expect(wait?.scope).toMatchObject({
      policy: { rule: 'policy', role: 'approver', quorum: 2, rules: [{ name: 'large-payments' }] },
    });
    const { rules } = (wait?.scope as { policy: { rules: { sha256: string }[] } }).policy;
    expect(rules[0]?.sha256).toMatch(/^[0-9a-f]{64}$/);
    expect(wait!.expires_at.getTime() - Date.now()).toBeLessThanOrEqual(600_000);
    expect(await decide(world, wait)).toBe('decided');
    expect(arrived(world, runId)).toEqual({});
    expect(await decide(world, wait, { actorId: 'user:cyd' })).toBe('decided');
    await completed(runId);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  });

  test('asks in the tenant that it names, and in no other', async () => {
    const [mine, theirs] = [await start('mail'), await start('mail', { tenantId: 'acme' })];
    await completed(mine);
    const [wait] = await untilGated(world, theirs);
    expect(await decide(world, wait, { tenantId: 'acme', decision: 'deny' })).toBe('decided');
    await completed(theirs);
    expect(arrived(world, theirs)).toEqual({});
  });

  test('is looked at anew for changed arguments, and asks for no less than before', async () => {
    const api = await startTestApi({ databaseUrl: world.databaseUrl });
    const edit = async (wait: Wait | undefined, cents: number, roles?: string) =>
      await api.request(`/v1/interrupts/${wait?.interrupt_id}/resolve`, {
        method: 'POST',
        headers: {
          ...{ 'content-type': 'application/json', 'x-actor': 'ben', 'idempotency-key': randomUUID() },
          ...(roles === undefined ? {} : { 'x-roles': roles }),
        },
        body: JSON.stringify({
          ...{ decision: 'approve', scope_sha256: wait?.scope_sha256 },
          arguments: { note: 'n', amount_cents: cents },
        }),
      });
    const runId = await start('large');
    const [wait] = await untilGated(world, runId);
    // More than a million takes a releaser, and an approver is none.
    expect((await edit(wait, 1_000_001, 'approver')).status).toBe(403);
    expect((await waits(world, runId)).map(({ state }) => state)).toEqual(['open']);
    expect((await edit(wait, 3)).status).toBe(200);
    const [, small] = await waits(world, runId);
    expect(small).toMatchObject({ state: 'open', quorum: 2, scope: { arguments: { amount_cents: 3 } } });
    expect((await edit(small, 1_000_001)).status).toBe(200);
    const huge = (await waits(world, runId)).at(-1);
    expect(huge).toMatchObject({ required_role: 'releaser', quorum: 2 });
    expect(huge?.scope).toMatchObject({
      policy: { role: 'releaser', rules: [{ name: 'large-payments' }, { name: 'huge-payments' }] },
    });
    await decide(world, huge, { authority: 'releaser', actorId: 'user:cyd' });
    await completed(runId);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId, { redo: 2 })]: 1 });
    await api.close();
  });
});

describe('a standing grant', () => {
  test('lets a run go through without a wait, once, and then people are asked', async () => {
    const tool = await toolOf('mail');
    await giveStandingGrant(world.db, {
      ...{ tenantId: 'acme', grantedBy: 'user:ben', authority: 'approver', agent: 'desk' },
      ...{ tool: tool.name, toolVersion: tool.version, usesMax: 2, note: 'Mail of the desk.' },
      ...{
        constraints: [{ at: '/note', minimum: 0 }],
        expiresAt: new Date(Date.now() + 600_000).toISOString(),
      },
      idempotencyKey: randomUUID(),
    });
    // The note is a text, and no number: outside.
    const outside = await start('mail', { tenantId: 'acme' });
    await decide(world, (await untilGated(world, outside))[0], { tenantId: 'acme', decision: 'deny' });
    await completed(outside);

    const input = `mail ${randomUUID()}`;
    await giveStandingGrant(world.db, {
      ...{ tenantId: 'acme', grantedBy: 'user:ben', authority: 'approver', agent: 'desk' },
      ...{ tool: tool.name, toolVersion: tool.version, usesMax: 1, note: 'This very mail.' },
      ...{
        constraints: [{ at: '/note', equals: input }],
        expiresAt: new Date(Date.now() + 600_000).toISOString(),
      },
      idempotencyKey: randomUUID(),
    });
    const granted = await world.run({ input, tenantId: 'acme' });
    await completed(granted);
    expect(await waits(world, granted)).toEqual([]);
    expect(arrived(world, granted)).toEqual({ [keyOf(granted)]: 1 });
    expect(await world.path(granted)).toEqual(['admitted', 'running', 'completed']);

    const asked = await world.run({ input, tenantId: 'acme' });
    await decide(world, (await untilGated(world, asked))[0], { tenantId: 'acme', decision: 'deny' });
    await completed(asked);
    expect(arrived(world, asked)).toEqual({});
  });
});

describe('an approver whose role is taken back', () => {
  test('between the yes and its use has said nothing: the run asks another (E09)', async () => {
    const tenantId = 'roles';
    const by = { tenantId, grantedBy: 'olga', authority: 'admin', role: 'approver' } as const;
    const ben = await grantRole(world.db, { ...by, actorId: 'user:ben', idempotencyKey: randomUUID() });
    await grantRole(world.db, { ...by, actorId: 'user:cyd', idempotencyKey: randomUUID() });
    if (!('role_grant_id' in ben)) throw new Error(ben.kind);
    const runId = await start('two', { tenantId, contract: { effects: { mail: { approval: 'required' } } } });
    const open = await untilGated(world, runId, 2);
    expect(await decide(world, open[0], { tenantId })).toBe('decided');
    await revokeRole(world.db, { tenantId, actorId: 'olga', authority: 'admin' }, ben.role_grant_id);
    expect(await decide(world, open[1], { tenantId, actorId: 'user:cyd' })).toBe('decided');
    await world.waitFor(runId, async () => (await waits(world, runId)).length === 3);
    const [anew] = await untilGated(world, runId);
    expect(anew).toMatchObject({ slot: 0 });
    expect(arrived(world, runId)).toEqual({});
    expect(await decide(world, anew, { tenantId })).toBe('role_required');
    expect(await decide(world, anew, { tenantId, actorId: 'user:cyd' })).toBe('decided');
    await completed(runId);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId, { slot: 0 })]: 1, [keyOf(runId, { slot: 1 })]: 1 });
  });
});

test('when all is said, ledger and target agree, and nothing left without its yes', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
});
