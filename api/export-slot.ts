import type { Pool } from 'pg';
import { HoldfastError } from '../shared/domain/errors.js';
import type { ApiDeps } from './deps.js';

/** How many exports each ledger's pool is at work on: each holds a connection for as long as it lasts. */
const underWay = new WeakMap<Pool, number>();

/**
 * Makes one export, whatever becomes of it, while there is room for one more.
 *
 * @throws HoldfastError `rate_limited` where this process writes as many as it may
 */
export async function whileExporting<A>({ pool, limits }: ApiDeps, work: () => Promise<A>): Promise<A> {
  const others = underWay.get(pool) ?? 0;
  if (others >= limits.exportsMax) {
    throw new HoldfastError(
      'rate_limited',
      `This process writes ${others} exports already. Come again later.`,
    );
  }
  underWay.set(pool, others + 1);
  try {
    return await work();
  } finally {
    underWay.set(pool, (underWay.get(pool) ?? 1) - 1);
  }
}
