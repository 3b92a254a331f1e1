import { deedsOf } from './provider-log.js';
import type { Direction, StartedRun } from './stage.js';
import { waitFor } from './wait.js';

/** What people did over the API, for the counts of the demo's last line. */
export interface PeopleDeeds {
  /** Calls that somebody approved. */
  readonly approved: number;
  /** Runs that somebody cancelled. */
  readonly cancelled: number;
  /** Unknown outcomes that somebody settled. */
  readonly settled: number;
}

const APPROVER = 'anna@refund-desk.example';
const OPERATOR = 'omar@refund-desk.example';

/**
 * Lets people do what the runs wait for: an approver approves, an operator cancels, and an operator settles what no
 * machine can know, after a look at the provider's own journal.
 *
 * @throws Error when a run does not come to wait in time
 */
export async function actAsPeople(
  started: readonly StartedRun[],
  direction: Direction,
): Promise<PeopleDeeds> {
  const deeds = { approved: 0, cancelled: 0, settled: 0 };
  for (const each of started) {
    switch (each.run.person) {
      case 'approves':
        await approve(each, direction);
        deeds.approved += 1;
        break;
      case 'cancels':
        await cancel(each, direction);
        deeds.cancelled += 1;
        break;
      case 'settles':
        if (await settle(each, direction)) deeds.settled += 1;
        break;
      case null:
        break;
    }
  }
  return deeds;
}

async function approve({ run, runId }: StartedRun, { stage, say, signal }: Direction): Promise<void> {
  const wait = await waitFor(`${run.orderId} to ask for an approval`, { withinMs: 30_000, signal }, () =>
    stage.api.openApproval(runId),
  );
  await stage.api.approve(APPROVER, wait);
  say(`POST /v1/interrupts/${wait.interrupt_id}/resolve: ${APPROVER} approves the refund of ${run.orderId}`);
}

async function cancel({ run, runId }: StartedRun, { stage, say, signal }: Direction): Promise<void> {
  await waitFor(`${run.orderId} to ask for an approval`, { withinMs: 30_000, signal }, () =>
    stage.api.openApproval(runId),
  );
  await stage.api.cancel(OPERATOR, runId);
  say(`POST /v1/runs/${runId}/commands: ${OPERATOR} cancels the run of ${run.orderId}; nothing has left`);
}

/** @returns false when the run had nothing to settle: a real model may have sent no mail */
async function settle({ run, runId }: StartedRun, { stage, say, signal }: Direction): Promise<boolean> {
  const effectId = await waitFor(
    `${run.orderId} to need a person`,
    { withinMs: 60_000, signal },
    async () => {
      const unknown = await stage.api.unknownEffect(runId);
      if (unknown !== undefined) return unknown;
      return (await stage.api.stateOf(runId)) === 'completed' ? null : undefined;
    },
  );
  if (effectId === null) return false;
  const { idempotency_key: key } = await stage.api.effectOf(runId, effectId);
  const deed = deedsOf(await stage.providerLog()).find((each) => each.key === key);
  await stage.api.settle(OPERATOR, effectId, deed?.reference ?? null);
  const word = deed === undefined ? 'not_committed' : `committed as ${deed.reference}`;
  say(
    `POST /v1/reconciliations/${effectId}/settle: ${OPERATOR} finds the mail of ${run.orderId} in the ` +
      `provider's journal and settles it: ${word}`,
  );
  return true;
}
