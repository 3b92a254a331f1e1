import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { InterruptView } from '../api/views/desk-views.js';
import { ProblemView } from '../api/views/common.js';
import type { JsonValue } from '../shared/domain/json.js';
import { canonicalJson } from '../shared/domain/strict-json.js';
import { registerAgent } from '../shared/ledger/admission.js';
import { sha256 } from '../shared/ledger/digest.js';
import { expire, type Gate, interruptOf, newGate, openGate, said } from './support/desk.js';
import { callOf } from './support/ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

// Goal: a person who changes a call before approving it gets exactly what they wrote, once, under a digest of its own,
// and nobody is left believing in the old call (SPEC 4.1, case 27). Method: edits through the API, then the claim.

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  await registerAgent(ledger.db, {
    ...LEDGER_AGENT,
    tools: [
      {
        ...{ name: 'tool_opaque', version: 'a'.repeat(64), description: 'Pays.', namespace: 'tool_opaque' },
        inputSchema: {
          type: 'object',
          additionalProperties: false,
          required: ['amount'],
          properties: { amount: { type: 'integer', minimum: 1, maximum: 100 }, note: { type: 'string' } },
        },
        ...{
          effectClass: 'opaque',
          keyed: null,
          query: null,
          compensation: null,
          parallel: false,
          short: false,
        },
        ...{ timeoutSeconds: 30, approval: 'required' },
      },
    ],
  });
  api = await startTestApi({ databaseUrl: ledger.url });
});

interface Edit {
  readonly arguments?: unknown;
  readonly actor?: string;
  readonly roles?: string;
  readonly key?: string;
  readonly scope?: string;
  readonly more?: object;
}

async function edit(gate: Pick<Gate, 'interruptId' | 'scopeSha256'>, say: Edit = {}): Promise<Response> {
  return await api.request(`/v1/interrupts/${gate.interruptId}/resolve`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      'x-actor': say.actor ?? 'ben',
      'idempotency-key': say.key ?? randomUUID(),
      ...(say.roles === undefined ? {} : { 'x-roles': say.roles }),
    },
    body: JSON.stringify({
      ...{ decision: 'approve', scope_sha256: say.scope ?? gate.scopeSha256 },
      ...{ arguments: say.arguments ?? { amount: 3 }, ...say.more },
    }),
  });
}
const codeOf = async (response: Response): Promise<string> =>
  response.status === 200 ? 'decided' : ProblemView.parse(await response.json()).code;
const viewOf = async (response: Response) => InterruptView.parse(await response.json());
const readOf = async (id: string) => viewOf(await api.request(`/v1/interrupts/${id}`));
const gateOf = (gate: Gate, view: { interrupt_id: string; scope_sha256: string }): Gate => ({
  ...gate,
  ...{ interruptId: view.interrupt_id, scopeSha256: view.scope_sha256 },
});
const five = (quorum = 1) => newGate(ledger, { arguments: '{"amount":5}', quorum });
const effectsOf = (gate: Gate) =>
  ledger.rows<{ state: string; redo: number; arguments: string; attempts: number }>(
    'select * from holdfast.effects where run_id = $1 order by redo',
    gate.run.runId,
  );
const resultOf = async (gate: Gate): Promise<string> => {
  const message = (await ledger.messages(gate.run.runId)).find(({ position }) => position === 2);
  return String(message?.content['text']);
};

describe('an approval with other arguments', () => {
  test('is one of those arguments: they alone run, once, under their own digest (case 27)', async () => {
    const gate = await five();
    const changed = await viewOf(await edit(gate, { arguments: { note: 'é', amount: 3 } }));
    const text = '{"amount":3,"note":"é"}';
    expect(changed).toMatchObject({
      ...{ state: 'approved', approvals: 1, supersedes: gate.interruptId, superseded_by: null },
      ...{ requested_by: 'user:ada', effect_state: 'intended' },
      scope: { arguments: { amount: 3, note: 'é' }, arguments_sha256: sha256(text), tool: 'tool_opaque' },
      decisions: [{ actor_id: 'ben', decision: 'approve', scope_sha256: changed.scope_sha256 }],
    });
    expect(changed.scope_sha256).toBe(sha256(canonicalJson(changed.scope as JsonValue)));
    expect(changed.scope_sha256).not.toBe(gate.scopeSha256);
    const old = await readOf(gate.interruptId);
    expect(old).toMatchObject({ state: 'superseded', superseded_by: changed.interrupt_id, decisions: [] });
    expect(changed.expires_at).toBe(old.expires_at);

    const claim = await gate.call.claimed();
    expect(claim).toMatchObject({ arguments: text, idempotencyKey: `${gate.run.runId}:t1:s1:c0:r1` });
    await gate.call.settle(claim, 'succeeded');
    expect(await effectsOf(gate)).toMatchObject([
      { state: 'superseded', redo: 0, arguments: '{"amount":5}', attempts: 0 },
      { state: 'succeeded', redo: 1, arguments: text, attempts: 1 },
    ]);
    expect(await readOf(changed.interrupt_id)).toMatchObject({ state: 'consumed' });
    expect(await resultOf(gate)).toBe(
      `A person changed the arguments of this call before approving it. They are now: ${text}\n\nthe target said succeeded`,
    );
  });

  test('is told in the feed, old and new, and leaves one wait in the list', async () => {
    const gate = await five(2);
    const changed = await viewOf(await edit(gate));
    const events = await ledger.events(gate.run.runId);
    expect(events.slice(-5).map(({ type }) => type)).toStrictEqual([
      ...[
        'interrupt.opened',
        'interrupt.superseded',
        'effect.closed',
        'interrupt.opened',
        'interrupt.decided',
      ],
    ]);
    const list = (await (await api.request(`/v1/interrupts?run_id=${gate.run.runId}`)).json()) as {
      interrupts: { interrupt_id: string }[];
    };
    expect(list.interrupts.map(({ interrupt_id }) => interrupt_id)).toStrictEqual([changed.interrupt_id]);
  });

  test('that are those already asked about is an approval like any other', async () => {
    const gate = await five();
    expect(await viewOf(await edit(gate, { arguments: { amount: 5.0 } }))).toMatchObject({
      ...{ interrupt_id: gate.interruptId, state: 'approved', supersedes: null },
    });
    expect(await effectsOf(gate)).toHaveLength(1);
  });

  test('of a quorum counts for the new digest alone: the others approve it anew', async () => {
    const gate = await five(2);
    expect(await said(gate, { actorId: 'user:cyd' })).toBe('decided');
    const changed = await viewOf(await edit(gate));
    expect(changed).toMatchObject({ state: 'open', approvals: 1, quorum: 2 });
    expect(await gate.call.ask()).toBe('approval_required');
    const again = gateOf(gate, changed);
    expect(await said(again, { scopeSha256: gate.scopeSha256, actorId: 'user:dan' })).toBe('scope_changed');
    expect(await said(again, { actorId: 'BEN ' })).toBe('interrupt_decided');
    expect(await said(again, { actorId: 'user:cyd' })).toBe('decided');
    expect(await gate.call.claimed()).toMatchObject({ arguments: '{"amount":3}' });
  });

  test('may be changed once more while it is open, and both words stay', async () => {
    const gate = await five(2);
    const first = await viewOf(await edit(gate));
    const second = await viewOf(await edit(gateOf(gate, first), { arguments: { amount: 4 }, actor: 'cyd' }));
    expect(second).toMatchObject({ supersedes: first.interrupt_id, state: 'open', approvals: 1 });
    expect((await effectsOf(gate)).map(({ state }) => state)).toStrictEqual([
      ...['superseded', 'superseded', 'intended'],
    ]);
    expect((await readOf(first.interrupt_id)).decisions).toMatchObject([{ actor_id: 'ben' }]);
  });

  test('sent again with its key is the same; with other arguments it is another', async () => {
    const gate = await five();
    const key = randomUUID();
    const first = await viewOf(await edit(gate, { key }));
    const again = await edit(gate, { key });
    expect([again.headers.get('idempotent-replayed'), (await viewOf(again)).interrupt_id]).toStrictEqual([
      ...['true', first.interrupt_id],
    ]);
    expect(await codeOf(await edit(gate, { key, arguments: { amount: 4 } }))).toBe('idempotency_key_reused');
    expect(await effectsOf(gate)).toHaveLength(2);
  });

  test('of twenty at once is one, whatever each wants', async () => {
    const gate = await five();
    const codes = await Promise.all(
      Array.from({ length: 20 }, async (_, n) =>
        codeOf(await edit(gate, { arguments: { amount: n + 10 }, actor: `person-${n}` })),
      ),
    );
    expect(codes.toSorted()).toStrictEqual(['decided', ...Array<string>(19).fill('interrupt_decided')]);
    expect((await effectsOf(gate)).map(({ state }) => state)).toStrictEqual(['superseded', 'intended']);
    await gate.call.claimed();
    expect(await ledger.attempts(gate.run.runId)).toHaveLength(1);
  });

  test('beside a plain yes, a no or the claim is one of them', async () => {
    for (let round = 0; round < 10; round += 1) {
      const gate = await five();
      const [changed, plain, no] = await Promise.all([
        edit(gate).then(codeOf),
        said(gate, { actorId: 'user:cyd' }),
        said(gate, { actorId: 'user:dan', decision: 'deny' }),
      ]);
      expect([changed, plain, no].toSorted()).toStrictEqual([
        ...['decided', 'interrupt_decided', 'interrupt_decided'],
      ]);
      const answer = await gate.call.claim();
      expect(answer).toMatchObject(
        no === 'decided'
          ? { kind: 'effect', state: 'denied' }
          : { kind: 'claimed', arguments: changed === 'decided' ? '{"amount":3}' : '{"amount":5}' },
      );
    }
  });

  test('may be revoked until it is used: then the new call is asked about, not the old', async () => {
    const gate = await five();
    const changed = await viewOf(await edit(gate));
    expect(await said(gateOf(gate, changed), { decision: 'revoke', actorId: 'user:cyd' })).toBe('decided');
    const anew = await openGate(gate.call);
    expect((await interruptOf(anew.call)).scope).toMatchObject({ arguments: { amount: 3 } });
  });

  test('found not committed is done again with the changed arguments, as often as the contract says', async () => {
    const gate = await newGate(ledger, {
      arguments: '{"amount":5}',
      contract: { reconciliation: { redos_max: 1 } },
    });
    await edit(gate);
    const notCommitted = async (): Promise<void> => {
      const late = await gate.call.lose();
      await gate.call.settle(late, 'rejected');
      await gate.call.beginQuery();
    };
    await notCommitted();
    expect(await gate.call.ask({ redo: 2 })).toBe('approval_required');
    expect(await gate.call.effect()).toMatchObject({ redo: 2, arguments: '{"amount":3}' });
    await said(await openGate(gate.call));
    await notCommitted();
    // The change was no redo: one was allowed, and one was made.
    expect(await gate.call.examine()).toMatchObject({ state: 'not_committed', next: 'tell_model' });
  });
});

describe('changed arguments are refused', () => {
  // prettier-ignore
  test.each<readonly [code: string, say: Edit]>([
    ['arguments_invalid', { arguments: {} }],
    ['arguments_invalid', { arguments: { amount: 101 } }],
    ['arguments_invalid', { arguments: { amount: '3' } }],
    ['arguments_invalid', { arguments: { amount: 3, to: 'me' } }],
    ['invalid_request',   { arguments: 'amount=3' }],
    ['invalid_request',   { more: { tool: 'tool_read' } }],
    ['invalid_request',   { more: { tool_version: 'b'.repeat(64) } }],
    ['invalid_request',   { more: { decision: 'revoke' } }],
    ['self_approval',     { actor: 'user:ada' }],
    ['self_approval',     { actor: ' User:ADA ' }],
    ['role_required',     { roles: 'operator' }],
    ['scope_changed',     { scope: 'f'.repeat(64) }],
  ])('with %s for %j, and the call waits as it was', async (code, say) => {
    const gate = await five();
    expect(await codeOf(await edit(gate, say))).toBe(code);
    expect(await effectsOf(gate)).toMatchObject([{ state: 'intended', arguments: '{"amount":5}' }]);
    expect(await readOf(gate.interruptId)).toMatchObject({ state: 'open', superseded_by: null });
    expect(await gate.call.ask()).toBe('approval_required');
  });

  test('once the approval was given, used, refused, expired or withdrawn', async () => {
    const given = await five();
    await said(given);
    expect(await codeOf(await edit(given))).toBe('interrupt_decided');
    await given.call.claimed();
    expect(await codeOf(await edit(given))).toBe('interrupt_decided');
    const denied = await five();
    await said(denied, { decision: 'deny' });
    expect(await codeOf(await edit(denied))).toBe('interrupt_decided');
    const over = await five();
    await expire(over);
    expect(await codeOf(await edit(over))).toBe('interrupt_expired');
    expect(await ledger.attempts(given.run.runId)).toHaveLength(1);
    for (const gate of [denied, over]) expect(await effectsOf(gate)).toHaveLength(1);
  });
});

test('an edit that fails in the middle leaves nothing of itself', async () => {
  const gate = await five();
  // The last write of the transaction cannot be made.
  await ledger.rows(
    `create function refuse_word() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`,
  );
  await ledger.rows(
    `create trigger refuse_word before insert on holdfast.decisions for each row execute function refuse_word()`,
  );
  const before = await ledger.footprint(gate.run.runId);
  expect((await edit(gate)).status).toBe(500);
  await ledger.rows('drop trigger refuse_word on holdfast.decisions');
  expect(await ledger.footprint(gate.run.runId)).toStrictEqual(before);
  expect(await readOf(gate.interruptId)).toMatchObject({ state: 'open' });
  expect(await codeOf(await edit(gate))).toBe('decided');
  expect(await gate.call.claimed()).toMatchObject({ arguments: '{"amount":3}' });
});

test('no call of another tool is put in its place: the scope names the tool that was planned', async () => {
  const run = await ledger.newStep([
    { ...callOf('opaque', { approval: 'required' }), toolVersion: 'b'.repeat(64), arguments: '{"amount":5}' },
  ]);
  // The version that the call was planned with is not the one that the manifest has: nothing can be checked.
  const gate = await openGate(run.call(0));
  expect(await codeOf(await edit(gate))).toBe('arguments_invalid');
});
