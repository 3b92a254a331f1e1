import type { EffectView } from './api-client.js';
import { type Comparison, compare } from './compare.js';
import { actAsPeople, type PeopleDeeds } from './people.js';
import { deedsOf } from './provider-log.js';
import type { DemoRun } from './runs.js';
import type { Direction, Stage, StartedRun } from './stage.js';
import type { PlayedRun } from './story.js';
import { waitFor } from './wait.js';

/** How the play ended. */
export interface Ending {
  readonly runs: readonly PlayedRun[];
  /** Those of the provider's effects alone. */
  readonly effects: readonly EffectView[];
  readonly comparison: Comparison;
  readonly people: PeopleDeeds;
}

/** The tools whose effects happen at the provider, where its journal can be asked about them. */
const PROVIDER_TOOLS: readonly string[] = ['refund_payment', 'send_mail'];
const ENDED: readonly string[] = ['completed', 'compensated', 'failed', 'cancelled'];

/**
 * Starts the runs, breaks what each of them calls for, waits until all have come to rest, and compares the
 * ledger with the provider's journal.
 *
 * @throws Error when something does not happen in time, when a process ends by itself, or on abort
 */
export async function play(runs: readonly DemoRun[], direction: Direction): Promise<Ending> {
  const { stage, say } = direction;
  const killing = runs.find((run) => run.killsWorker);
  const started: StartedRun[] = [];
  if (killing !== undefined) {
    started.push({ run: killing, runId: await start(killing, direction) });
    await killInMidPayment(killing, direction);
  }
  for (const run of runs) {
    if (run !== killing) started.push({ run, runId: await start(run, direction) });
  }
  if (killing !== undefined) await recover(killing, direction);

  const people = await actAsPeople(started, direction);

  say(`waiting until all ${runs.length} runs have come to rest`);
  const states = await statesAtRest(started, direction);
  const played = started.map(({ run, runId }) => ({ ...run, runId, state: states.get(runId) ?? 'unread' }));
  const effects: EffectView[] = [];
  for (const { runId } of started) {
    const own = await stage.api.effectsOf(runId);
    effects.push(...own.filter((effect) => PROVIDER_TOOLS.includes(effect.tool)));
  }
  const comparison = compare(effects, deedsOf(await stage.providerLog()));
  return { runs: played, effects, comparison, people };
}

async function start(run: DemoRun, { stage, say }: Direction): Promise<string> {
  if (run.dial !== null) await stage.turnDial(run.dial);
  const runId = await stage.api.startRun(`demo-${run.orderId}`, {
    agent: 'refund-desk',
    input: run.input,
    contract: {
      objective: `Settle the refund request for ${run.orderId}.`,
      acceptance: { rule: 'The report states the decision and every effect.', accepted_by: 'desk-lead' },
      owner: 'desk-lead',
      ...(run.person === 'approves' || run.person === 'cancels'
        ? { effects: { refund_payment: { approval: 'required' } } }
        : {}),
    },
  });
  say(`POST /v1/runs "${run.input}" -> ${runId}${run.trouble === '' ? '' : `  (${run.trouble})`}`);
  return runId;
}

async function killInMidPayment(run: DemoRun, { stage, say, signal }: Direction): Promise<void> {
  await waitFor(
    `the refund of ${run.orderId} to arrive`,
    { withinMs: 30_000, everyMs: 25, signal },
    async () => {
      stage.checkAlive();
      return (await refundArrivals(run, stage)) > 0 ? true : undefined;
    },
  );
  const pid = await stage.killWorker();
  say(`the provider's journal shows the refund of ${run.orderId}: kill -9 of the worker (pid ${pid})`);
}

/** Brings a worker back; lets it ask under the same key while the provider still works; lets that finish. */
async function recover(run: DemoRun, { stage, say, signal }: Direction): Promise<void> {
  const arrivalsBefore = await refundArrivals(run, stage);
  const pid = await stage.startWorker();
  say(`a new worker takes over (pid ${pid}); the provider still holds the refund of ${run.orderId}`);
  // Asking again is not owed within this time: the key may also be asked about only after the release.
  const patienceEnds = performance.now() + 15_000;
  const asked = await waitFor(`${run.orderId} to be asked again`, { withinMs: 20_000, signal }, async () => {
    stage.checkAlive();
    if ((await refundArrivals(run, stage)) > arrivalsBefore) return 'yes';
    return performance.now() > patienceEnds ? 'no' : undefined;
  });
  if (asked === 'yes') say('it asked again under the same key and was told: in progress');
  await stage.turnDial({ mode: 'ok', for: { payment_id: run.paymentId } });
  say('the provider lets the held refund go through');
}

async function refundArrivals(run: DemoRun, stage: Stage): Promise<number> {
  const lines = await stage.providerLog();
  return lines.filter(
    (line) => line.kind === 'arrived' && line.endpoint === 'refunds' && line.subject === run.paymentId,
  ).length;
}

/** Long enough that a look between two of a run's own status queries does not pass for rest. */
const RESTS_AFTER_MS = 1_500;

/** Each run's state once it has ended, or stayed in `needs_reconciliation`, which only a person moves on. */
async function statesAtRest(
  started: readonly StartedRun[],
  { stage, say, signal }: Direction,
): Promise<ReadonlyMap<string, string>> {
  const atRest = new Map<string, string>();
  const waitingSince = new Map<string, number>();
  const rests = (runId: string, state: string): boolean => {
    if (state !== 'needs_reconciliation') {
      waitingSince.delete(runId);
      return ENDED.includes(state);
    }
    const now = performance.now();
    const since = waitingSince.get(runId) ?? now;
    waitingSince.set(runId, since);
    return now - since >= RESTS_AFTER_MS;
  };
  const withinMs = 60_000 + started.length * 1_000;
  await waitFor('all runs to come to rest', { withinMs, everyMs: 400, signal }, async () => {
    stage.checkAlive();
    for (const { run, runId } of started.filter((one) => !atRest.has(one.runId))) {
      const state = await stage.api.stateOf(runId);
      if (!rests(runId, state)) continue;
      atRest.set(runId, state);
      say(`${run.orderId} ${state}`);
    }
    return atRest.size === started.length ? true : undefined;
  });
  return atRest;
}
