import type { Cooling } from '../domain/protocol.js';
import { callFunction, type Db } from './database.js';

/** The one mapper from a claim's answer to the protocol's. */
export function coolingOf(a: Record<string, unknown>): Cooling {
  return {
    kind: 'cooling',
    waitMs: a['wait_ms'] as number,
    attempt: a['attempt'] as number,
    attemptsMax: a['attempts_max'] as number,
    seriesMsLeft: a['series_ms_left'] as number,
  };
}

/** The run's turn after a stop, where the ledger gave it one. */
export function notBeforeOf(a: Record<string, unknown>): { readonly notBeforeMs?: number } {
  const ms = a['not_before_ms'] as number | null | undefined;
  return ms === undefined || ms === null ? {} : { notBeforeMs: ms };
}

const CLEAR = {
  name: 'ledger/clear-cooldown',
  text: 'select holdfast.clear_cooldown($1, $2, $3, $4) as answer',
};

/**
 * A person's word that a target may be asked again. The runs that wait look again and go one after another. Safe to repeat.
 *
 * @returns `same` where it was over already, or cleared before
 */
export async function clearCooldown(
  db: Db,
  by: { readonly tenantId: string; readonly actorId: string; readonly authority: string },
  cooldownId: string,
): Promise<'cleared' | 'same' | 'cooldown_not_found'> {
  const { kind } = await callFunction(db, CLEAR, [by.tenantId, by.actorId, by.authority, cooldownId]);
  return kind as 'cleared' | 'same' | 'cooldown_not_found';
}
