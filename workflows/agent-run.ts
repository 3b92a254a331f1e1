import { ApplicationFailure, allHandlersFinished, condition } from '@temporalio/workflow';
import {
  type ResumePoint,
  RUN_INPUT_VERSION,
  type RunInput,
  type RunResult,
  type TakeOverAnswer,
} from '../shared/domain/protocol.js';
import { isTerminal, type RunState } from '../shared/domain/run-machine.js';
import { ledger } from './activities.js';
import { callModel } from './call-model.js';
import { compensate } from './compensate.js';
import { CancelAsked, OutOfStep, RunFails } from './endings.js';
import { reconcile } from './reconcile.js';
import { Nudges, Run } from './run.js';
import { examine, settleCalls } from './settle-call.js';
import { windDown } from './wind-down.js';

const FROM_ADMISSION: ResumePoint = {
  kind: 'resume',
  state: 'admitted',
  control: 'active',
  turn: 1,
  step: 1,
  trailPosition: 0,
  unknown: [],
  retryMsLeft: 0,
  undoes: false,
};

/**
 * One agent run (SPEC 4). The ledger holds where it stands; an execution that starts late, continues, is reset or is
 * out of step takes the run over and goes on from there, so there is one way on and nothing is carried beside it.
 */
export async function agentRun(rawInput: unknown): Promise<RunResult> {
  const nudges = new Nudges();
  const input = parseInput(rawInput);
  let from: ResumePoint = FROM_ADMISSION;
  if (input.continued > 0) {
    const taken = await takeOver(input, true);
    if (taken.kind === 'lost_ownership') return { state: 'lost_ownership' };
    from = taken;
  }
  for (;;) {
    const run = new Run(input, from, nudges);
    void run.abortOnCancel();
    try {
      const state = await drive(run, from);
      await condition(allHandlersFinished);
      return { state };
    } catch (error) {
      if (!(error instanceof OutOfStep)) throw error;
      run.retire();
      const taken = await takeOver(input, false);
      if (taken.kind === 'lost_ownership') return { state: 'lost_ownership' };
      from = taken;
    }
  }
}

/**
 * An input of another version is refused before any effect: nothing of it is believed. The ledger keeps the run, and
 * the sweeper shows its end. Checked by hand: a schema library would be loaded anew by every workflow.
 */
function parseInput(rawInput: unknown): RunInput {
  if (isRunInput(rawInput)) return rawInput;
  throw ApplicationFailure.nonRetryable('The run input is of another version.', 'snapshot_incompatible');
}

function isRunInput(value: unknown): value is RunInput {
  if (!hasFields(value, ['version', 'runId', 'continued', 'modelIsShort', 'settings'])) return false;
  const { version, runId, continued, modelIsShort, settings } = value;
  if (version !== RUN_INPUT_VERSION || !isWhole(continued, 0, Number.MAX_SAFE_INTEGER)) return false;
  if (typeof modelIsShort !== 'boolean') return false;
  if (typeof runId !== 'string' || !/^run_[0-9a-f]{32}$/.test(runId)) return false;
  if (!hasFields(settings, ['heartbeatSeconds', 'historyEventsMax', 'apiUrl'])) return false;
  const { heartbeatSeconds, historyEventsMax, apiUrl } = settings;
  return (
    typeof heartbeatSeconds === 'number' &&
    heartbeatSeconds >= 0.2 &&
    heartbeatSeconds <= 600 &&
    isWhole(historyEventsMax, 50, 20_000) &&
    typeof apiUrl === 'string' &&
    apiUrl.length <= 200
  );
}

/** Whether `value` is an object with exactly these fields. */
function hasFields<F extends string>(value: unknown, fields: readonly F[]): value is Record<F, unknown> {
  if (typeof value !== 'object' || value === null) return false;
  return Object.keys(value).length === fields.length && fields.every((field) => Object.hasOwn(value, field));
}

function isWhole(value: unknown, min: number, max: number): boolean {
  return Number.isInteger(value) && (value as number) >= min && (value as number) <= max;
}

function takeOver(input: RunInput, continued: boolean): Promise<TakeOverAnswer> {
  return ledger.takeOver({ runId: input.runId, continued });
}

/** The run as a story: settle what is open, then think, act, think … to the end. */
async function drive(run: Run, from: ResumePoint): Promise<RunState> {
  if (isTerminal(run.state)) {
    run.show();
    return run.state;
  }
  try {
    if (from.undoes) return await compensate(run);
    // A pause or cancel in force is heard before anything moves.
    if (from.control !== 'active') await run.obey();
    await standUp(run, from);
    for (;;) {
      run.show();
      const answer = await callModel(run);
      if (answer.state === 'completed') {
        run.trail.countLedgerEntry();
        run.state = 'completed';
        run.show();
        return run.state;
      }
      const { calls, asks = [], children = [] } = answer;
      if (calls.length + asks.length + children.length > 0) await settleCalls(run, calls, asks, children);
      else if (answer.refused === 0) return await endWith(run, answer.stopReason);
      run.step += 1;
    }
  } catch (error) {
    if (error instanceof CancelAsked) return await windDown(run);
    if (!(error instanceof RunFails)) throw error;
    return await fail(run, error.reason);
  }
}

/** To `failed`; where the contract says so, what happened is undone first, and the ledger sees to it. */
async function fail(run: Run, reason: RunFails['reason']): Promise<RunState> {
  const { state } = run;
  run.move('fail', reason);
  try {
    await run.flush();
    return run.state;
  } catch (error) {
    if (!(error instanceof OutOfStep) || error.refusal !== 'must_compensate') throw error;
  }
  run.takeBack(state);
  run.move('compensate', reason);
  return await compensate(run);
}

/**
 * From wherever the ledger stands to `running`, lawfully. What a run rests on in `needs_reconciliation` is settled
 * before anything new begins; what else is unknown is found when its step is taken up again.
 */
async function standUp(run: Run, { unknown, retryMsLeft }: ResumePoint): Promise<void> {
  switch (run.state) {
    case 'admitted':
      run.move('start', 'run_started');
      break;
    case 'retry_wait':
      if (retryMsLeft > 0) await run.waitFor(retryMsLeft);
      run.move('retry_due', 'taken_over');
      break;
    case 'waiting_for_input':
      run.move('input_received', 'taken_over');
      break;
    case 'awaiting_approval':
      run.move('approval_closed', 'taken_over');
      break;
    case 'reconciling':
      run.move('inconclusive', 'taken_over');
      await settleUnknown(run, unknown);
      break;
    case 'needs_reconciliation':
      await settleUnknown(run, unknown);
      break;
    case 'cancelling':
      throw new CancelAsked();
    default:
      break;
  }
}

async function settleUnknown(run: Run, unknown: ResumePoint['unknown']): Promise<void> {
  for (const { step, slot } of unknown) {
    run.step = step;
    const standing = await examine(run, slot);
    // What is sent again or given up needs no settlement: its step sees to it.
    if (standing.kind !== 'effect' || standing.state !== 'unknown') continue;
    if (standing.next === 'resend' || standing.next === 'give_up') continue;
    await reconcile(run, slot, standing);
  }
  if (run.state !== 'needs_reconciliation') return;
  // Nothing rests on it any more, or the same key may be sent again: its step is taken up once more.
  run.move('reconcile', 'taken_over');
  run.move('settled', 'taken_over');
}

/** A final answer that did not end the run by itself. */
async function endWith(run: Run, stopReason: string): Promise<RunState> {
  switch (stopReason) {
    case 'stop':
    case 'other':
      // The answer did not end the run by itself: somebody may have asked for control meanwhile.
      await run.obey();
      run.move('complete', 'answer_final');
      await run.flush();
      return run.state;
    case 'length':
      throw new RunFails('model_output_truncated');
    case 'content_filter':
      throw new RunFails('model_content_refused');
    default:
      throw new RunFails('model_failed');
  }
}
