import { z } from 'zod';
import { BudgetLimits, budgetLines } from '../../shared/domain/budgets.js';
import { COMMAND_KINDS, type CommandKind } from '../../shared/domain/control-table.js';
import { HoldfastError, type ErrorCode } from '../../shared/domain/errors.js';
import type { JsonObject } from '../../shared/domain/json.js';
import { isId } from '../../shared/domain/ids.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import type { Role } from '../../shared/domain/roles.js';
import { submitCommand } from '../../shared/ledger/commands.js';
import {
  type CommandRecord,
  listCommands,
  readCommand,
  readRequester,
} from '../../shared/ledger/reads/read-commands.js';
import { readRunHead } from '../../shared/ledger/reads/read-events.js';
import { byId, readPage } from '../cursor.js';
import type { Identity } from '../deps.js';
import { roleRequired } from '../identity.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { foundOf, runKeyOf, runNotFound } from '../run-key.js';
import { Instant, PageQuery } from '../views/common.js';
import { CommandListView, CommandView } from '../views/desk-views.js';

const SubmitCommand = z
  .strictObject({
    kind: z.enum(COMMAND_KINDS),
    reason: z.string().min(1).max(1_000).optional().meta({ description: 'For whoever reads the trail.' }),
    compensate: z
      .boolean()
      .optional()
      .meta({ description: 'Of a cancel alone: undo what the run did, as its tools declare.' }),
    expected_state_version: z
      .int()
      .min(1)
      .optional()
      .meta({ description: 'Refuse the command when the run has moved on from this version.' }),
    budget: BudgetLimits.refine((limits) => budgetLines(limits).length > 0, { error: 'names no limit' })
      .optional()
      .meta({
        description: 'For `change_budget`: the limits to set. One that was not there counts from now on.',
      }),
    deadline_at: Instant.optional().meta({
      description:
        'For `change_deadline`: when the run must be over. A time that has passed ends it at its next safe point.',
    }),
  })
  .superRefine((command, context) => {
    for (const [member, kind] of [
      ['budget', 'change_budget'],
      ['deadline_at', 'change_deadline'],
    ] as const) {
      if ((command[member] !== undefined) === (command.kind === kind)) continue;
      const message = command.kind === kind ? `is missing for ${kind}` : `belongs to ${kind} alone`;
      context.addIssue({ code: 'custom', path: [member], message });
    }
  })
  .refine(({ kind, compensate }) => kind === 'cancel' || compensate === undefined, {
    path: ['compensate'],
    error: 'belongs to a cancel',
  })
  .meta({ id: 'SubmitCommand' });

/** What the ledger keeps of a command beside its kind. */
function payloadOf({ reason, compensate, budget, deadline_at }: z.output<typeof SubmitCommand>): JsonObject {
  return {
    ...(reason === undefined ? {} : { reason }),
    ...(compensate === true ? { compensate: true } : {}),
    ...(budget === undefined ? {} : { lines: budgetLines(budget).map((line): JsonObject => ({ ...line })) }),
    ...(deadline_at === undefined ? {} : { deadline_at: new Date(deadline_at).toISOString() }),
  };
}

/** POST /v1/runs/{run_id}/commands: pause, resume, cancel, or a change of what the run may spend. */
export const submitCommandRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/runs/{run_id}/commands',
    operationId: 'submitCommand',
    summary: 'Pause, resume or cancel a run, or change its limits',
    description:
      'Stores the command, judges it (docs/control-table.md) and puts it in force in one transaction, whether ' +
      'Temporal is up or not: nothing is dispatched against it from then on. The run carries it out at its next safe ' +
      'point; its fate is in GET /v1/commands/{command_id}. A cancel with `compensate` undoes what happened, backwards, ' +
      'and ends the run `compensated`, or `failed` where something is left. A change of budget or deadline is applied at ' +
      'once, raised or lowered. Takes the role operator; a requester may pause, resume and cancel their own run.',
    authenticated: true,
    idempotent: true,
    body: SubmitCommand,
    replies: {
      202: {
        description: 'In force; the run has yet to carry it out.',
        body: CommandView,
        headers: { Location: 'The command.' },
      },
      200: {
        description:
          'Applied at once, or stored by an earlier request with this key: the command as it is now.',
        body: CommandView,
        headers: { Location: 'The command.', 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: [
      ...WRITE_ERRORS,
      'run_not_found',
      'role_required',
      'idempotency_key_reused',
      'state_version_conflict',
      'run_ended',
      'cancel_in_force',
      'resume_in_progress',
      'pause_in_progress',
      'not_paused',
      'budget_not_set',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async (input, { pool }) => {
    const key = runKeyOf(input);
    const { body, identity, idempotencyKey } = input;
    const submitted = await submitCommand(pool, {
      ...key,
      kind: body.kind,
      payload: payloadOf(body),
      actorId: identity.actorId,
      authority: authorityOver(identity, foundOf(await readRequester(pool, key), key), body.kind),
      expectedStateVersion: body.expected_state_version ?? null,
      endpoint: `POST /v1/runs/${key.runId}/commands`,
      idempotencyKey,
    });
    if (submitted.kind === 'run_not_found') throw runNotFound(key.runId);
    if (submitted.kind === 'reused') {
      throw new HoldfastError(
        'idempotency_key_reused',
        `This key gave ${submitted.commandId} with another body. Nothing was done: send a new key, or that body.`,
        { extensions: { command_id: submitted.commandId } },
      );
    }
    const command = await readCommand(pool, key.tenantId, submitted.commandId);
    if (command === null) throw commandNotFound(submitted.commandId);
    if (command.fate === 'rejected') throw refusalOf(command);
    const headers = { location: `/v1/commands/${command.command_id}` };
    if (submitted.kind === 'replayed')
      return reply(200, command, { ...headers, 'idempotent-replayed': 'true' });
    return command.fate === 'accepted' ? reply(202, command, headers) : reply(200, command, headers);
  },
);

/** Whoever asked for a run may stop it too, and may not give themselves more to spend. */
function authorityOver(identity: Identity, requester: string, kind: CommandKind): Role {
  if (identity.roles.includes('operator')) return 'operator';
  if (kind === 'change_budget' || kind === 'change_deadline') {
    throw roleRequired(`${kind.replace('_', ' the ')} of a run`, ['operator']);
  }
  if (identity.roles.includes('requester') && identity.actorId === requester) return 'requester';
  throw roleRequired(`${kind} this run`, ['operator', 'requester (of one’s own run)']);
}

type Refusal = Extract<
  ErrorCode,
  | 'run_ended'
  | 'cancel_in_force'
  | 'resume_in_progress'
  | 'pause_in_progress'
  | 'not_paused'
  | 'budget_not_set'
  | 'state_version_conflict'
>;

const WHAT_TO_DO: Readonly<Record<Refusal, string>> = {
  run_ended: 'Nothing can be done to it any more; read what it did, or start a new run.',
  cancel_in_force: 'A cancel is being carried out and cannot be taken back or changed; wait for its end.',
  resume_in_progress: 'It is being resumed; read it again and decide then.',
  pause_in_progress: 'It is being paused; resume it when it is paused, or cancel it.',
  not_paused: 'There is nothing to resume.',
  budget_not_set:
    'It cannot count some of what the command names: a tool that its agent lacks, or a cost without a price.',
  state_version_conflict: 'It has moved on from the version you saw; read it again and decide then.',
};

/** The same words for the same command, however often it is sent. */
function refusalOf(command: CommandRecord): HoldfastError {
  const code = command.code as Refusal;
  const { command_id, run_id, kind, state, control } = command;
  return new HoldfastError(
    code,
    `Run ${run_id} was ${state} (control: ${control}) when the ${kind} came, so it was refused. ${WHAT_TO_DO[code]}`,
    { extensions: { command_id, run_id, state, control } },
  );
}

/** GET /v1/runs/{run_id}/commands: what was asked of the run, refused ones included. */
export const listCommandsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/runs/{run_id}/commands',
    operationId: 'listCommands',
    summary: "List a run's commands, oldest first",
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page.', body: CommandListView } },
    errors: ['invalid_request', 'run_not_found', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async (input, { pool }) => {
    const key = runKeyOf(input);
    const { query } = input;
    const scope = { list: 'commands', tenant: key.tenantId, run: key.runId };
    const { rows, next } = await readPage(scope, query, byId('cmd', 'command_id'), async (after) => {
      foundOf(await readRunHead(pool, key), key);
      return await listCommands(pool, key, { after: after ?? '', limit: query.limit });
    });
    return reply(200, { commands: rows, next_cursor: next });
  },
);

/** GET /v1/commands/{command_id}: one command with its fate. */
export const readCommandRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/commands/{command_id}',
    operationId: 'readCommand',
    summary: 'Read a command and its fate',
    authenticated: true,
    replies: { 200: { description: 'The command.', body: CommandView } },
    errors: ['command_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, identity }, { pool }) => {
    const { command_id: id } = params;
    const command = isId('cmd', id) ? await readCommand(pool, identity.tenantId, id) : null;
    if (command === null) throw commandNotFound(id);
    return reply(200, command);
  },
);

function commandNotFound(id: string): HoldfastError {
  return new HoldfastError(
    'command_not_found',
    `There is no command ${excerpt(id, 60)}. GET /v1/runs/{run_id}/commands lists those of a run.`,
  );
}
