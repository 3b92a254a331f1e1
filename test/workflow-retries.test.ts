import { beforeAll, describe, expect, test } from 'vitest';
import type { Dial } from './support/http-target.js';
import { applied, arrived, checkRun, modelRequests } from './support/run-checks.js';
import { call, DONE, reply, script, when } from './support/scripts.js';
import { type SkippingWorld, startSkippingWorld } from './support/skipping-world.js';
import { keyOf, type World } from './support/world.js';

// Goal: every wait of a run ends as its contract says, however long it is. Method: Temporal's time and the ledger's
// clock are skipped together; the target counts what really arrived.

const MINUTE = 60;
const DAY = 86_400;

let skipping: SkippingWorld;
let world: World;

beforeAll(async () => {
  skipping = await startSkippingWorld({
    limits: { wallClockSecondsMax: 120 * DAY },
    httpTools: {
      pay: { limiterRunsBeforeExecution: true },
      look: { limiterRunsBeforeExecution: true },
      /** Its target keeps a key for a minute only. */
      brief: {
        ...{ description: 'Pays.', class: 'keyed', url: '/keyed' },
        keyed: { windowSeconds: MINUTE, resendsMax: 5 },
        answers: [{ status: 409, at: '/error', equals: 'key_in_progress', outcome: 'in_progress' }],
      },
      /** Keyed, and its target can be asked too. */
      traced: {
        ...{ description: 'Pays.', class: 'keyed', url: '/queryable' },
        keyed: { windowSeconds: DAY, resendsMax: 1 },
        query: { settlingSeconds: 30, equalAnswers: 2, intervalSeconds: 10, queriesMax: 10 },
        probe: {
          url: '/queryable/{$key}',
          answers: [
            { status: 200, outcome: 'found' },
            { status: 404, outcome: 'absent' },
          ],
        },
      },
      /** Nobody listens on port 1. */
      down: { description: 'Pays.', class: 'opaque', url: 'http://127.0.0.1:1/', allow: ['127.0.0.1:1'] },
    },
    script: script(
      ...['pay', 'book', 'mail', 'look', 'brief', 'traced', 'down'].map((tool) => when(tool, reply(tool), DONE)),
      when('ever', ...Array.from({ length: 20 }, () => reply('look'))),
      when('busy', { error: { reason: 'overloaded', retryAfter: 10 * MINUTE } }),
      when('crowd', reply(...Array.from({ length: 5 }, () => call('look'))), DONE),
    ),
  });
  world = skipping.world;
});

interface RetryRow {
  readonly action: string;
  readonly reason: string;
  readonly attempt: number;
  readonly attempts_max: number;
  /** From the row to the next attempt. */
  readonly wait: number | null;
  readonly retry_after: number | null;
}

function retries(runId: string): Promise<RetryRow[]> {
  return world.rows<RetryRow>(
    `select action, reason, attempt, attempts_max, retry_after_seconds::int as retry_after,
            extract(epoch from eligible_at - test_clock.clock_timestamp())::float as left_now,
            extract(epoch from eligible_at - e.created_at)::float as wait
       from holdfast.retries r
       join holdfast.run_events e on e.run_id = r.run_id and e.type = 'retry.recorded'
        and (e.data ->> 'attempt')::int = r.attempt and (e.data ->> 'action') = r.action
      where r.run_id = $1 order by trail_seq`,
    runId,
  );
}
