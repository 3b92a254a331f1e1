import { z } from 'zod';
import { ROLES } from '../../shared/domain/roles.js';
import { NextCursor, Time } from './common.js';

const RefusalView = z
  .strictObject({
    request_id: z.string().meta({ description: 'The X-Request-Id of the answer.' }),
    actor_id: z.string(),
    roles: z.array(z.enum(ROLES)).readonly().meta({ description: 'Those that the actor had then.' }),
    route: z.string().meta({ description: 'Method and path with the names of its parameters.' }),
    params: z.record(z.string(), z.string()).meta({ description: 'What the parameters were, cut at 200.' }),
    code: z.string().meta({ description: 'The code of the answer.' }),
    http_status: z.int(),
    at: Time,
  })
  .meta({ id: 'Refusal' });

/** A page of refusals, newest first. */
export const RefusalListView = z
  .strictObject({ refusals: z.array(RefusalView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'RefusalList' });
