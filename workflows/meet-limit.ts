import type { Held } from '../shared/domain/protocol.js';
import { awaitInput } from './await-input.js';
import { RunFails } from './endings.js';
import type { Run } from './run.js';

/**
 * What reaching a limit is, as the ledger decided by the contract (SPEC 4.3). When this returns, the same call comes
 * again: a person has answered, or the ledger lets the model say its last word.
 *
 * @throws RunFails when the run ends over it
 */
export async function meetLimit(
  run: Run,
  { limit, way }: Extract<Held, { readonly kind: 'limit' }>,
): Promise<void> {
  switch (way) {
    case 'ask':
      return await awaitInput(run, 'budget_needed');
    case 'finish':
      return;
    default:
      throw new RunFails(limit);
  }
}
