import { z } from 'zod';
import { Time } from './common.js';

const ActiveRunLimitView = z
  .strictObject({
    agent: z.string().nullable().meta({ description: 'Null: all runs of the tenant together.' }),
    active_max: z.int(),
    active: z.int().meta({ description: 'Runs under way, those that wait for somebody included.' }),
    queued: z.int().meta({ description: 'Admitted runs that have not been started yet.' }),
    changed_by: z.string(),
    changed_at: Time,
  })
  .meta({ id: 'ActiveRunLimit' });

/** The tenant's limits on active runs: that of all agents first. */
export const ActiveRunLimitList = z
  .strictObject({ items: z.array(ActiveRunLimitView).readonly() })
  .meta({ id: 'ActiveRunLimitList' });
