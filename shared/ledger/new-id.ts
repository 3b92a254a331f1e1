import { uuidv7 } from 'uuidv7';
import { idOfUuid } from '../domain/ids.js';
import type { IdPrefix } from '../domain/ids.js';

/** A fresh id of this kind; later ones of one process sort after earlier ones. Never for what a workflow mints. */
export function newId(prefix: IdPrefix): string {
  return idOfUuid(prefix, uuidv7());
}
