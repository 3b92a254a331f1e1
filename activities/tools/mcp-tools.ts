import { randomUUID } from 'node:crypto';
import { notSentAnswer, unknownAnswer } from './answers.js';
import { openDeadline, withinDeadline } from './deadline.js';
import type { Deadline } from './deadline.js';
import { digestDeclaration, shortProblems, ToolDeclarationError } from './declaration.js';
import type { DeclarationProblem } from './declaration.js';
import { policyOf, policyProblems } from './effect-policy.js';
import { inputSchemaProblems } from './input-schema.js';
import type { McpConnection, McpSession } from './mcp-connection.js';
import type { McpToolDeclaration } from './mcp-format.js';
import { judgeMcpFailure, judgeMcpResult } from './mcp-outcomes.js';
import { McpPinsError } from './mcp-pins.js';
import type { McpPin } from './mcp-pins.js';
import { CALL_ID_META } from './mcp-streams.js';
import type { NotSentReason } from './reasons.js';
import type { Tool, ToolAnswer, ToolCall } from './tool.js';

/** Member of a call's `_meta` that carries the idempotency key. */
const KEY_META = 'holdfast/idempotencyKey';

// The library's own timer is set past every deadline of ours: ours sends the cancel notice and knows why.
const LIBRARY_TIMEOUT_MS = 2 ** 31 - 1;
// Time for an answer that has come to be read, once its stream has ended.
const STREAM_GRACE_MS = 500;

/** What a tool of an MCP server is made of. */
export interface McpToolParts {
  readonly server: string;
  /** The server's own name of the tool. */
  readonly remoteName: string;
  readonly declared: McpToolDeclaration;
  readonly pin: McpPin;
  readonly connection: McpConnection;
}

/**
 * Makes a tool of one tool of an MCP server.
 *
 * What the model sees is the pin, and each call first looks whether the server still offers exactly that:
 * if not, nothing is sent (`schema_drift`). Its class is the operator's word; a server's hints
 * are not read.
 *
 * @throws ToolDeclarationError with every problem of the declaration
 */
export function createMcpTool(parts: McpToolParts): Tool {
  const { declared, pin, server, remoteName } = parts;
  const name = declared.as ?? remoteName;
  const problems = mcpToolProblems(declared, pin);
  if (problems.length > 0) throw new ToolDeclarationError(name, problems);
  const { description, inputSchema } = pin;
  return {
    name,
    description,
    inputSchema,
    version: digestDeclaration(name, { kind: 'mcp', name, server, remoteName, pin: pin.digest, ...declared }),
    effect: policyOf(declared, server),
    parallel: declared.parallel ?? declared.class === 'read',
    short: declared.short,
    timeoutSeconds: totalSecondsOf(declared),
    call: (call) => callMcpTool(parts, call),
    missingSecrets: () => parts.connection.missingSecrets(),
  };
}

function mcpToolProblems(declared: McpToolDeclaration, pin: McpPin): DeclarationProblem[] {
  const problems = [
    ...policyProblems(declared, { hasProbe: false }),
    ...shortProblems(declared.short, totalSecondsOf(declared)),
  ];
  if (declared.class === 'queryable') {
    problems.push({
      path: ['class'],
      message: 'an MCP tool cannot be asked about a key — use keyed or opaque',
    });
  }
  if (declared.totalTimeoutSeconds !== undefined && !declared.progressExtends) {
    const message = 'it needs `progressExtends: true` — remove it or set that';
    problems.push({ path: ['totalTimeoutSeconds'], message });
  }
  if (totalSecondsOf(declared) < declared.timeoutSeconds) {
    problems.push({
      path: ['totalTimeoutSeconds'],
      message: 'it is shorter than timeoutSeconds — make it longer',
    });
  }
  return [...problems, ...inputSchemaProblems(pin.inputSchema)];
}

function totalSecondsOf(declared: McpToolDeclaration): number {
  if (!declared.progressExtends) return declared.timeoutSeconds;
  return declared.totalTimeoutSeconds ?? Math.min(86_400, declared.timeoutSeconds * 10);
}

async function callMcpTool(parts: McpToolParts, call: ToolCall): Promise<ToolAnswer> {
  const deadline = openDeadline(call, parts.declared.timeoutSeconds * 1000);
  try {
    if (deadline.cause() !== null) return notSentAnswer('aborted_before_send');
    const session = await withinDeadline(readySession(parts), deadline);
    if (session === 'timed_out') return notSentAnswer('timed_out_before_send');
    if (session === 'aborted') return notSentAnswer('aborted_before_send');
    if (typeof session === 'string') return notSentAnswer(session);
    return await sendCall(parts, session, call, deadline);
  } finally {
    deadline.end();
  }
}

/** A session whose server offers the tool exactly as it is pinned, or why there is none. */
async function readySession(parts: McpToolParts): Promise<McpSession | NotSentReason> {
  let session: McpSession | null = null;
  try {
    session = await parts.connection.session();
    const offered = (await session.offered()).get(parts.remoteName);
    if (offered === undefined) return 'tool_missing';
    return offered.digest === parts.pin.digest ? session : 'schema_drift';
  } catch (error) {
    if (error instanceof McpPinsError) return 'schema_drift';
    // Nothing was asked of the tool yet. A session that cannot list its tools is of no use to the next call.
    if (session !== null) await parts.connection.retire(session);
    return 'server_unreachable';
  }
}

async function sendCall(
  parts: McpToolParts,
  session: McpSession,
  call: ToolCall,
  deadline: Deadline,
): Promise<ToolAnswer> {
  const callId = randomUUID();
  const controller = new AbortController();
  const signal = AbortSignal.any([deadline.signal, controller.signal]);
  let grace: NodeJS.Timeout | undefined;
  const done = session.use();
  const stop = session.onStreamEnd(callId, () => {
    grace = setTimeout(() => {
      controller.abort(new Error('The stream of the answer ended without it.'));
    }, STREAM_GRACE_MS);
  });
  try {
    // `request`, not `callTool`: that one sends a call again when a header was refused, and throws the
    // result of an effect away when it does not fit the server's own output schema.
    const result = await session.client.request(
      {
        method: 'tools/call',
        params: {
          name: parts.remoteName,
          arguments: { ...call.arguments },
          _meta: { [KEY_META]: call.idempotencyKey, [CALL_ID_META]: callId },
        },
      },
      {
        signal,
        timeout: LIBRARY_TIMEOUT_MS,
        onprogress: ({ message = null, progress, total = null }) => {
          call.progress({ message, done: progress, total });
          if (parts.declared.progressExtends) deadline.extend();
        },
      },
    );
    return judgeMcpResult(result, parts.declared);
  } catch (error) {
    const cause = deadline.cause();
    if (cause !== null) return unknownAnswer(cause);
    if (controller.signal.aborted) {
      await parts.connection.retire(session);
      return unknownAnswer('connection_closed');
    }
    const failure = judgeMcpFailure(error);
    if (failure.isOfSession) await parts.connection.retire(session);
    return failure.answer;
  } finally {
    clearTimeout(grace);
    stop();
    done();
  }
}
