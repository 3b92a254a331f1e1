import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { InterruptGroupListView, InterruptListView, InterruptView } from '../api/views/desk-views.js';
import { RunListView, RunView } from '../api/views/run-views.js';
import { delegating, newestChild, newFamily, start } from './support/children.js';
import { drain, openGate, submit } from './support/desk.js';
import { callOf, type LedgerRun } from './support/ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

// Goal: whoever reads a run sees where it stands in its tree, and whoever decides sees from which tree the wait comes.
// Method: families that the ledger made, read through the API.

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
});

const read = async ({ runId }: LedgerRun) =>
  RunView.parse(await (await api.request(`/v1/runs/${runId}`)).json());
const listed = async (query: string) =>
  RunListView.parse(await (await api.request(`/v1/runs?${query}`)).json()).runs.map(({ run_id }) => run_id);
const waits = async (query: string) =>
  InterruptListView.parse(await (await api.request(`/v1/interrupts?${query}`)).json()).interrupts;

describe('a run', () => {
  test('shows its root, its depth and its children', async () => {
    const { parent, child } = await newFamily(ledger, { toolName: 'research', onCancel: 'leave' });
    expect(await read(parent)).toMatchObject({
      identity: { parent_run_id: null, root_run_id: parent.runId, depth: 0 },
      children: {
        total: 1,
        by_state: { admitted: 1 },
        runs: [
          {
            ...{ run_id: child.runId, tool: 'research', agent: LEDGER_AGENT.name, turn: 1, step: 1, slot: 0 },
            ...{ on_cancel: 'leave', state: 'admitted', control: 'active', reason: null, ended_at: null },
            ...{ steps_granted: 25, tool_calls_granted: 100 },
          },
        ],
      },
    });
    await child.start();
    await child.plan([delegating()]);
    await start(child);
    const grandchild = await newestChild(child);
    expect((await read(grandchild)).identity).toMatchObject({
      ...{ parent_run_id: child.runId, root_run_id: parent.runId, depth: 2 },
    });
    expect((await read(grandchild)).children).toStrictEqual({ total: 0, by_state: {}, runs: [] });
  });

  test('that is being paused counts the children that are still coming to rest', async () => {
    const { parent, child } = await newFamily(ledger);
    await child.start();
    await submit(parent, 'pause');
    expect((await read(parent)).control).toMatchObject({ draining: { children: 1 }, drained: false });
    await drain(child);
    expect((await read(parent)).control).toMatchObject({ draining: { children: 0 }, drained: false });
  });
});

describe('the list of runs', () => {
  test('can be of the children of one, and of nobody else’s', async () => {
    const { parent, child } = await newFamily(ledger);
    await newFamily(ledger);
    expect(await listed(`parent=${parent.runId}`)).toStrictEqual([child.runId]);
    expect(await listed(`parent=${child.runId}`)).toStrictEqual([]);
    const elsewhere = await api.request(`/v1/runs?parent=${parent.runId}`, { tenant: 'other' });
    expect(RunListView.parse(await elsewhere.json()).runs).toStrictEqual([]);
  });

  test('refuses a parent that is no id of a run', async () => {
    const response = await api.request('/v1/runs?parent=me');
    expect(response.status).toBe(400);
    expect(ProblemView.parse(await response.json())).toMatchObject({ code: 'invalid_request' });
  });

  test('refuses a cursor of another parent’s list', async () => {
    const parent = await ledger.newStep([delegating(), delegating()]);
    await start(parent, 0);
    await start(parent, 1);
    const page = RunListView.parse(
      await (await api.request(`/v1/runs?parent=${parent.runId}&limit=1`)).json(),
    );
    expect(page.next_cursor).not.toBeNull();
    const other = await api.request(`/v1/runs?limit=1&cursor=${page.next_cursor}`);
    expect(ProblemView.parse(await other.json())).toMatchObject({ code: 'cursor_invalid' });
  });
});

describe('a wait of a child', () => {
  async function gatedChild() {
    const { parent, child } = await newFamily(ledger);
    await child.start();
    await child.plan([callOf('opaque', { approval: 'required' })]);
    const gate = await openGate(child.call(0));
    return { parent, child, interruptId: gate.interruptId };
  }

  test('stands in the one list with its lineage, and is found by its root', async () => {
    const { parent, child, interruptId } = await gatedChild();
    await gatedChild();
    const lineage = {
      ...{ interrupt_id: interruptId, run_id: child.runId, parent_run_id: parent.runId },
      ...{ root_run_id: parent.runId, parent_agent: LEDGER_AGENT.name, requested_by: 'user:ada' },
    };
    expect(await waits(`root_run_id=${parent.runId}`)).toMatchObject([lineage]);
    expect((await waits('limit=100')).map(({ interrupt_id }) => interrupt_id)).toContain(interruptId);
    expect(await waits(`root_run_id=${child.runId}`)).toStrictEqual([]);
    expect(await waits(`run_id=${parent.runId}`)).toStrictEqual([]);
    const one = await api.request(`/v1/interrupts/${interruptId}`);
    expect(InterruptView.parse(await one.json())).toMatchObject(lineage);
  });

  test('is counted in the groups of its root', async () => {
    const { parent } = await gatedChild();
    const response = await api.request(`/v1/interrupts?group_by=scope&root_run_id=${parent.runId}`);
    expect(InterruptGroupListView.parse(await response.json()).groups).toMatchObject([{ count: 1, runs: 1 }]);
  });

  test('of a run that is nobody’s child is found by the run itself', async () => {
    const run = await ledger.newStep([callOf('opaque', { approval: 'required' })]);
    await openGate(run.call(0));
    expect(await waits(`root_run_id=${run.runId}`)).toMatchObject([
      { run_id: run.runId, parent_run_id: null, parent_agent: null, root_run_id: run.runId },
    ]);
  });

  test('cannot be approved by the one who asked for its parent, however they write themselves', async () => {
    const { interruptId } = await gatedChild();
    const [wait] = (await waits('limit=100')).filter(({ interrupt_id }) => interrupt_id === interruptId);
    for (const actor of ['user:ada', 'User:ADA', ' USER:ada']) {
      const response = await api.request(`/v1/interrupts/${interruptId}/resolve`, {
        method: 'POST',
        headers: {
          ...{ 'content-type': 'application/json', 'x-actor': actor, 'x-roles': 'approver' },
          'idempotency-key': `self-${actor.trim()}`,
        },
        body: JSON.stringify({ decision: 'approve', scope_sha256: wait?.scope_sha256 }),
      });
      expect([response.status, ProblemView.parse(await response.json()).code]).toStrictEqual([
        403,
        'self_approval',
      ]);
    }
  });
});
