import { z } from 'zod';
import { COMMAND_KINDS } from '../../shared/domain/control-table.js';
import { HoldfastError, type ErrorCode } from '../../shared/domain/errors.js';
import { idSchema, isId } from '../../shared/domain/ids.js';
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
import { decodeCursor, encodeCursor } from '../cursor.js';
import type { Identity } from '../deps.js';
import { roleRequired } from '../identity.js';
import { defineRoute, reply } from '../route.js';
import { foundOf, runKeyOf, runNotFound } from '../run-key.js';
import { PageQuery } from '../views/common.js';
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
  })
  .refine(({ kind, compensate }) => kind === 'cancel' || compensate === undefined, {
    path: ['compensate'],
    error: 'belongs to a cancel',
  })
  .meta({ id: 'SubmitCommand' });

/** POST /v1/runs/{run_id}/commands: pause, resume or cancel. */
export const submitCommandRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/runs/{run_id}/commands',
    operationId: 'submitCommand',
    summary: 'Pause, resume or cancel a run',
    description:
      'Stores the command, judges it (docs/control-table.md) and puts it in force in one transaction, whether ' +
      'Temporal is up or not: nothing is dispatched against it from then on. The run carries it out at its next safe ' +
      'point; its fate is in GET /v1/commands/{command_id}. A cancel with `compensate` undoes what happened, backwards, ' +
      'and ends the run `compensated`, or `failed` where something is left. Takes the role operator, or requester for one’s own run.',
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
      'idempotency_key_missing',
      'idempotency_key_invalid',
      'unsupported_media_type',
      'payload_too_large',
      'invalid_json',
      'invalid_request',
      'run_not_found',
      'role_required',
      'idempotency_key_reused',
      'state_version_conflict',
      'run_ended',
      'cancel_in_force',
      'resume_in_progress',
      'pause_in_progress',
      'not_paused',
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
      payload: {
        ...(body.reason === undefined ? {} : { reason: body.reason }),
        ...(body.compensate === true ? { compensate: true } : {}),
      },
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

/** Whoever asked for a run may stop it too. */
function authorityOver(identity: Identity, requester: string, kind: string): Role {
  if (identity.roles.includes('operator')) return 'operator';
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
  | 'state_version_conflict'
>;

const WHAT_TO_DO: Readonly<Record<Refusal, string>> = {
  run_ended: 'Nothing can be done to it any more; read what it did, or start a new run.',
  cancel_in_force: 'A cancel is being carried out and cannot be taken back or changed; wait for its end.',
  resume_in_progress: 'It is being resumed; read it again and decide then.',
  pause_in_progress: 'It is being paused; resume it when it is paused, or cancel it.',
  not_paused: 'There is nothing to resume.',
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
    const { cursor, limit } = input.query;
    const scope = { list: 'commands', tenant: key.tenantId, run: key.runId };
    const after = cursor === undefined ? '' : decodeCursor(scope, cursor, idSchema('cmd'));
    foundOf(await readRunHead(pool, key), key);
    const commands = await listCommands(pool, key, { after, limit });
    const last = commands.length < limit ? undefined : commands.at(-1);
    const next = last === undefined ? null : encodeCursor(scope, last.command_id);
    return reply(200, { commands, next_cursor: next });
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
