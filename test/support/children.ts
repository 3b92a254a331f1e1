import { randomUUID } from 'node:crypto';
import type { ChildAnswer } from '../../shared/domain/protocol.js';
import { startChild } from '../../shared/ledger/children.js';
import type { DelegateCallRow } from '../../shared/ledger/model-calls.js';
import { refusalOf } from '../../shared/ledger/refusals.js';
import { childrenOf, type ChildRow } from './child-world.js';
import { LedgerRun } from './ledger-run.js';
import { type ContractChanges, LEDGER_AGENT, type LedgerWorld } from './ledger-world.js';

/** A planned call that starts the test agent as a child. */
export function delegating(changes: Partial<DelegateCallRow> = {}): DelegateCallRow {
  return {
    ...{ kind: 'delegate', slot: 0, callId: 'call_0', toolName: 'help', toolVersion: 'd'.repeat(64) },
    ...{ agent: LEDGER_AGENT.name, task: 'Do your part.', parallel: false, onCancel: 'cancel' },
    share: { steps: 0.5, toolCalls: 0.5, wallClock: 1 },
    ...changes,
  };
}

/** What the ledger says of the delegate's call in a slot of the current step: its kind, what holds it, or the refusal. */
export async function start(run: LedgerRun, slot = 0): Promise<string> {
  try {
    const answer: ChildAnswer = await startChild(
      run.world.db,
      run,
      { turn: 1, step: run.step, slot },
      run.trail(),
    );
    return answer.kind === 'control' ? answer.control : answer.kind === 'limit' ? answer.limit : answer.kind;
  } catch (error) {
    return refusalOf(error) ?? String(error);
  }
}

/** The newest child of a run, spoken for by an execution that the ledger does not know yet. */
export async function newestChild(run: LedgerRun): Promise<LedgerRun> {
  const child = (await rowsOf(run)).at(-1);
  if (child === undefined) throw new Error(`${run.runId} has no child`);
  return new LedgerRun(run.world, child.child_run_id, `exec-${randomUUID()}`);
}

export async function rowsOf({ world, runId }: LedgerRun): Promise<ChildRow[]> {
  return await childrenOf(world, runId);
}

/** A running run and its child, admitted and not begun. */
export async function newFamily(
  world: LedgerWorld,
  changes: Partial<DelegateCallRow> = {},
  contract: ContractChanges = {},
): Promise<{ readonly parent: LedgerRun; readonly child: LedgerRun }> {
  const parent = await world.newStep([delegating(changes)], contract);
  const kind = await start(parent);
  if (kind !== 'open') throw new Error(`the child is ${kind}`);
  return { parent, child: await newestChild(parent) };
}

/** The result of a slot of the run's current step, as its model is told it; undefined while there is none. */
export async function resultOf(
  run: LedgerRun,
  slot = 0,
): Promise<{ readonly text: string; readonly isError: boolean } | undefined> {
  const [row] = await run.world.rows<{ content: { text: string; isError: boolean } }>(
    `select content from holdfast.messages where run_id = $1 and step = $2 and position = $3`,
    run.runId,
    run.step,
    slot + 2,
  );
  return row?.content;
}
