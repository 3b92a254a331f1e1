import { StartError } from '../../shared/process/exit.js';
import type { TemporalConnection } from '../../shared/process/temporal-config.js';
import { registerSearchAttributes } from './search-attributes.js';
import { checkTemporal, withTemporal } from './temporal-check.js';

/**
 * Makes sure that a given Temporal serves the namespace and knows our search attributes.
 *
 * @throws StartError that names the settings to look at
 */
export async function prepareGivenTemporal(
  connection: TemporalConnection,
  namespace: string,
  say: (line: string) => void,
): Promise<void> {
  const problem = await checkTemporal(connection, namespace, 10);
  if (problem !== null) {
    throw new StartError(
      `Temporal at ${connection.address} does not serve namespace ${namespace} (${problem}). ` +
        `Check TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_TLS and TEMPORAL_API_KEY.`,
    );
  }
  const added = await withTemporal(connection, 10, (open) => registerSearchAttributes(open, namespace));
  say(`temporal  using ${connection.address}${added.length > 0 ? `, registered ${added.join(', ')}` : ''}`);
}
