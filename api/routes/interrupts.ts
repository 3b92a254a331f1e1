import { z } from 'zod';
import { HoldfastError } from '../../shared/domain/errors.js';
import { idSchema, isId } from '../../shared/domain/ids.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import { ROLES } from '../../shared/domain/roles.js';
import {
  INTERRUPT_KINDS,
  INTERRUPT_STATES,
  type InterruptFilters,
  type InterruptGroup,
  listInterruptGroups,
  listInterrupts,
} from '../../shared/ledger/reads/list-interrupts.js';
import { readInterrupt } from '../../shared/ledger/reads/read-interrupt.js';
import { byId, type Places, readPage } from '../cursor.js';
import { defineRoute, reply } from '../route.js';
import { PageQuery } from '../views/common.js';
import { InterruptGroupListView, InterruptListView, InterruptView } from '../views/desk-views.js';

const Part = z.string().max(80);
const GROUP_PLACES: Places<InterruptGroup, [string, string, string, string, string]> = {
  schema: z.tuple([Part, Part, Part, Part, Part]),
  of: ({ tool, tool_version, arguments_sha256, kind, asks }) => [
    ...([tool, tool_version, arguments_sha256, kind] as const),
    asks ?? '',
  ],
};

/** GET /v1/interrupts: everybody who is waited for, whatever for. Decides nothing. */
export const listInterruptsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/interrupts',
    operationId: 'listInterrupts',
    summary: 'List waits for somebody, oldest first',
    description:
      'Open ones unless `state` says otherwise. A wait whose time is over is `expired` from that instant on; a ' +
      'reconciliation never is, and says `overdue`. With `group_by=scope` one row stands for all waits of a kind for the ' +
      'same tool, version and arguments, with their count. GET /v1/reconciliations shows the evidence of reconciliations.',
    authenticated: true,
    query: z.strictObject({
      state: z.enum([...INTERRUPT_STATES, 'any']).default('open'),
      kind: z.enum(INTERRUPT_KINDS).optional(),
      run_id: idSchema('run').optional(),
      root_run_id: idSchema('run').optional().meta({ description: 'Of this run and of every run below it.' }),
      agent: z
        .string()
        .regex(/^[ -~]{1,64}$/, { error: 'must be 1 to 64 printable ASCII characters' })
        .optional(),
      role: z.enum(ROLES).optional().meta({ description: 'The role that a decision takes.' }),
      group_by: z.literal('scope').optional(),
      ...PageQuery,
    }),
    replies: {
      200: { description: 'One page.', body: z.union([InterruptListView, InterruptGroupListView]) },
    },
    errors: ['invalid_request', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ query, identity }, { pool }) => {
    const { tenantId } = identity;
    const { limit } = query;
    const filters: InterruptFilters = {
      state: query.state === 'any' ? null : query.state,
      kind: query.kind ?? null,
      runId: query.run_id ?? null,
      rootRunId: query.root_run_id ?? null,
      agent: query.agent ?? null,
      role: query.role ?? null,
    };
    const scope = { list: 'interrupts', tenant: tenantId, by: query.group_by ?? null, ...filters };
    if (query.group_by === undefined) {
      const { rows, next } = await readPage(scope, query, byId('int', 'interrupt_id'), (after) =>
        listInterrupts(pool, tenantId, filters, { after: after ?? '', limit }),
      );
      return reply(200, { interrupts: rows, next_cursor: next });
    }
    const { rows, next } = await readPage(scope, query, GROUP_PLACES, (after) =>
      listInterruptGroups(pool, tenantId, filters, { after: after ?? ['', '', '', '', ''], limit }),
    );
    return reply(200, { groups: rows, next_cursor: next });
  },
);

/** GET /v1/interrupts/{interrupt_id}: what somebody has to decide about, and what was said. Decides nothing. */
export const readInterruptRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/interrupts/{interrupt_id}',
    operationId: 'readInterrupt',
    summary: 'Read a wait with its scope',
    description: 'Reading decides nothing; only POST …/resolve does.',
    authenticated: true,
    replies: { 200: { description: 'The wait.', body: InterruptView } },
    errors: ['interrupt_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, identity }, { pool }) => {
    const { interrupt_id: id } = params;
    const interrupt = isId('int', id) ? await readInterrupt(pool, identity.tenantId, id) : null;
    if (interrupt === null) throw interruptNotFound(id);
    return reply(200, interrupt);
  },
);

/** The one answer for a wait that is not there, is another tenant's, or could never be. */
export function interruptNotFound(id: string): HoldfastError {
  return new HoldfastError(
    'interrupt_not_found',
    `There is no interrupt ${excerpt(id, 60)}. GET /v1/interrupts lists those that are open.`,
  );
}
