import type { Pool } from 'pg';
import { z } from 'zod';
import type { EventHub } from '../shared/ledger/reads/event-hub.js';

/** One thing that was looked at and what was found. */
export const ReadinessCheck = z
  .strictObject({
    name: z.enum(['ledger', 'migrations', 'event_feed']),
    ok: z.boolean(),
    /** Without it the process takes no work; the others only make it slower. */
    required: z.boolean(),
    evidence: z.string(),
  })
  .meta({ id: 'ReadinessCheck' });

/** What this process proves about its ability to serve, check by check. */
export const Readiness = z
  .strictObject({ ready: z.boolean(), checks: z.array(ReadinessCheck) })
  .meta({ id: 'Readiness' });
export type Readiness = z.output<typeof Readiness>;

/** Where the ledger's schema stands against this build. */
export interface SchemaLevel {
  readonly ok: boolean;
  /** For people: which migrations are there, which are missing or unknown. */
  readonly evidence: string;
}

/**
 * Looks at everything the API needs. Reads only. Never throws: what cannot be read is a check that failed,
 * named by its SQLSTATE or system code alone, since a driver's message names hosts.
 */
export async function checkReadiness(deps: {
  readonly pool: Pool;
  readonly hub: EventHub;
  readonly schemaLevel: (pool: Pool) => Promise<SchemaLevel>;
}): Promise<Readiness> {
  const ledger = await check('ledger', true, async () => {
    const { rows } = await deps.pool.query<{ version: string; writable: boolean; durable: boolean }>(
      `select current_setting('server_version') as version, not pg_is_in_recovery() as writable,
              current_setting('fsync') <> 'off' and current_setting('synchronous_commit') <> 'off' as durable`,
    );
    const { version = 'unknown', writable = false, durable = false } = rows[0] ?? {};
    const state = [
      writable ? 'writable' : 'read-only (in recovery)',
      durable ? 'durable' : 'may lose commits (fsync or synchronous_commit is off)',
    ];
    return { ok: writable && durable, evidence: `Postgres ${version}, ${state.join(', ')}` };
  });
  const migrations = ledger.ok
    ? await check('migrations', true, () => deps.schemaLevel(deps.pool))
    : { name: 'migrations' as const, ok: false, required: true, evidence: 'not looked at: no ledger' };
  const listening = deps.hub.isListening();
  const feed = {
    name: 'event_feed' as const,
    ok: listening,
    required: false,
    evidence: listening ? 'LISTEN connection stands' : 'no LISTEN connection; polling alone',
  };
  const checks = [ledger, migrations, feed];
  return { ready: checks.every(({ ok, required }) => ok || !required), checks };
}

type CheckResult = z.output<typeof ReadinessCheck>;

async function check(
  name: CheckResult['name'],
  required: boolean,
  look: () => Promise<SchemaLevel>,
): Promise<CheckResult> {
  try {
    return { name, required, ...(await look()) };
  } catch (error) {
    const { code } = error as { code?: unknown };
    const how = typeof code === 'string' ? code : 'no answer';
    return { name, required, ok: false, evidence: `cannot be read: ${how}` };
  }
}
