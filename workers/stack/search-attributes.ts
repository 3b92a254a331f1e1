import type { Connection } from '@temporalio/client';
import { SEARCH_ATTRIBUTES } from '../../shared/domain/protocol.js';
import { StartError } from '../../shared/process/exit.js';

/** Names of the attributes that operators filter runs by in the Temporal Web UI; every one is a Keyword. */
export const SEARCH_ATTRIBUTE_NAMES: readonly string[] = Object.values(SEARCH_ATTRIBUTES);

/** `INDEXED_VALUE_TYPE_KEYWORD` of Temporal's API. */
const KEYWORD = 2;
/** gRPC status codes: another process was first; the server lets only its operators do this. */
const ALREADY_EXISTS = 6;
const NOT_ALLOWED = [7, 12];

/**
 * Registers our search attributes in a namespace. May be called by any number of processes, any number of times.
 *
 * @returns the names this call added; empty when all were there
 * @throws StartError when one exists with another type, or the server does not let us add them
 */
export async function registerSearchAttributes(connection: Connection, namespace: string): Promise<string[]> {
  try {
    const existing = await connection.operatorService.listSearchAttributes({ namespace });
    const types = { ...existing.systemAttributes, ...existing.customAttributes };
    const wrong = SEARCH_ATTRIBUTE_NAMES.filter(
      (name) => types[name] !== undefined && types[name] !== KEYWORD,
    );
    if (wrong.length > 0) {
      throw new StartError(
        `Search attributes ${wrong.join(', ')} of namespace ${namespace} exist but are not Keywords. ` +
          `Remove them (temporal operator search-attribute remove), then start again.`,
      );
    }
    const missing = SEARCH_ATTRIBUTE_NAMES.filter((name) => types[name] === undefined);
    if (missing.length > 0) {
      await connection.operatorService.addSearchAttributes({
        namespace,
        searchAttributes: Object.fromEntries(missing.map((name) => [name, KEYWORD])),
      });
    }
    return missing;
  } catch (error) {
    if (error instanceof StartError) throw error;
    const code = (error as { code?: unknown }).code;
    if (code === ALREADY_EXISTS) return [];
    if (typeof code === 'number' && NOT_ALLOWED.includes(code)) {
      throw new StartError(
        `Temporal does not let us register search attributes in namespace ${namespace}. ` +
          `Register these as Keyword by hand: ${SEARCH_ATTRIBUTE_NAMES.join(', ')}.`,
        { cause: error },
      );
    }
    throw error;
  }
}
