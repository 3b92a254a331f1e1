import { HoldfastError } from '../shared/domain/errors.js';
import type { JsonObject } from '../shared/domain/json.js';
import { readRun } from '../shared/ledger/reads/read-run.js';
import { isGone, type RunHead } from '../shared/ledger/reads/read-events.js';
import type { RunKey } from '../shared/ledger/reads/row-values.js';
import type { ApiDeps } from './deps.js';
import { type Observed, stateOf } from './run-state.js';

/** @throws HoldfastError `events_gone`, with the run's state, when what comes after `after` was let go */
export async function refuseGone(deps: ApiDeps, key: RunKey, head: RunHead, after: number): Promise<void> {
  if (!isGone(head, after)) return;
  const run = await readRun(deps.pool, key);
  throw eventsGone(key, head, run === null ? null : stateOf(run));
}

/** Says that events were let go, how the run stands instead, and after which event the feed goes on. */
export function eventsGone(key: RunKey, head: RunHead, observed: Observed | null): HoldfastError {
  const resumeFrom = head.eventsFrom - 1;
  return new HoldfastError(
    'events_gone',
    `The events of ${key.runId} up to ${resumeFrom} were let go some time after its end. \`snapshot\` says how it stands; ` +
      `the feed goes on after event ${resumeFrom}. What it did is in its effects, its transitions and its story.`,
    {
      extensions: {
        ...{ run_id: key.runId, resume_from: resumeFrom },
        snapshot: observed === null ? null : ({ as_of: observed.seq, ...observed.state } as JsonObject),
      },
    },
  );
}
