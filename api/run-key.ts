import { HoldfastError } from '../shared/domain/errors.js';
import { isId } from '../shared/domain/ids.js';
import { excerpt } from '../shared/domain/json-rules.js';
import type { RunKey } from '../shared/ledger/reads/row-values.js';
import type { Identity } from './deps.js';

/**
 * The run that a path names, for the tenant that asks.
 *
 * @throws HoldfastError `run_not_found` for a text that is no run id: it names nothing
 */
export function runKeyOf(input: {
  readonly params: { readonly run_id: string };
  readonly identity: Identity;
}): RunKey {
  const { run_id: runId } = input.params;
  if (!isId('run', runId)) throw runNotFound(runId);
  return { tenantId: input.identity.tenantId, runId };
}

/** The one answer for a run that is not there, is another tenant's, or could never be. */
export function runNotFound(runId: string): HoldfastError {
  return new HoldfastError(
    'run_not_found',
    `There is no run ${excerpt(runId, 60)}. Check the id; GET /v1/runs lists the runs there are.`,
  );
}

/** `value`, or `run_not_found` where the ledger had nothing of this tenant. */
export function foundOf<Value>(value: Value | null, key: RunKey): Value {
  if (value === null) throw runNotFound(key.runId);
  return value;
}
