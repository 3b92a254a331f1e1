import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import type { Transport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { excerpt } from '../../shared/domain/json-rules.js';
import { expandSecrets, missingSecrets } from './expand.js';
import type { LookUp } from './expand.js';
import type { McpServerDeclaration } from './mcp-format.js';
import { watchStreams } from './mcp-streams.js';
import { pinOf } from './mcp-pins.js';
import type { McpPin } from './mcp-pins.js';

/** What a connection is made with. */
export interface McpConnectionOptions {
  readonly name: string;
  /** With its `${env:…}` filled in. */
  readonly server: McpServerDeclaration;
  readonly secrets: LookUp;
  /** Working folder of a server that is started as a process. */
  readonly dir: string;
}

/** The server could not be started, reached or initialised; no call was sent. */
export class McpConnectError extends Error {
  readonly code = 'mcp_connect_failed';
}

/** A live session with a server. */
export interface McpSession {
  readonly client: Client;
  /** What the server offers now, by its own names; read again after it says that its list changed. */
  offered(): Promise<ReadonlyMap<string, McpPin>>;
  /** Hears the end of the stream that answers the HTTP request of `callId`; returns the way to stop. */
  readonly onStreamEnd: (callId: string, hear: () => void) => () => void;
  /** Tells that a call uses the session, so that nothing closes it; returns the way to say "done". */
  use(): () => void;
}

const STDERR_CHARACTERS_KEPT = 1000;

/**
 * One server of one worker: at most one session at a time, opened when a call needs it, opened anew after
 * it broke, and closed with its child process by `close`.
 */
export class McpConnection {
  private readonly options: McpConnectionOptions;
  private opening: Promise<OpenSession> | null = null;
  private isClosed = false;

  constructor(options: McpConnectionOptions) {
    this.options = options;
  }

  /** Names of the secrets that the server is given and that this process does not have. */
  missingSecrets(): string[] {
    const { server, secrets } = this.options;
    return missingSecrets(server.transport === 'http' ? server.headers : server.env, secrets);
  }

  /**
   * The session that is open, or a new one.
   *
   * @throws McpConnectError when there is none to be had
   */
  async session(): Promise<McpSession> {
    if (this.isClosed) throw new McpConnectError(`MCP server ${this.options.name} was closed.`);
    if (this.opening === null) {
      const opening = openSession(this.options, () => {
        this.forget(opening);
      });
      this.opening = opening;
      opening.catch(() => {
        this.forget(opening);
      });
    }
    return this.opening;
  }

  /**
   * Sees to it that the next call opens another session. The given one is closed when its last call has
   * ended: a call in flight may still get its answer.
   */
  async retire(session: McpSession): Promise<void> {
    const { opening } = this;
    // An opening that fails is not the session's: it is reported to whoever asked for it.
    const open = await opening?.catch(() => null);
    if (opening === null || open !== session) return;
    this.forget(opening);
    await open.closeWhenIdle();
  }

  /** Ends the session and its child process. Calls in flight end as unclear; none can be made afterwards. */
  async close(): Promise<void> {
    this.isClosed = true;
    const { opening } = this;
    this.opening = null;
    if (opening === null) return;
    try {
      await (await opening).client.close();
    } catch (error) {
      // A session that never opened has nothing to close; its opener was told why.
      if (!(error instanceof McpConnectError)) throw error;
    }
  }

  private forget(opening: Promise<OpenSession>): void {
    if (this.opening === opening) this.opening = null;
  }
}

interface OpenSession extends McpSession {
  /** Closes now, or with the end of the last call. */
  closeWhenIdle(): Promise<void>;
}

async function openSession(options: McpConnectionOptions, onEnd: () => void): Promise<OpenSession> {
  const { name, server } = options;
  const connectTimeoutMs = server.connectTimeoutSeconds * 1000;
  const made = makeTransport(options);
  // No capabilities: a server may ask this client for nothing. `legacy` is the plain handshake of 2025,
  // whose calls are one request each; the later protocol sends a call again to answer a server's question.
  const client = new Client(
    { name: 'holdfast', version: '1' },
    { capabilities: {}, versionNegotiation: { mode: 'legacy' } },
  );
  let listing: Promise<ReadonlyMap<string, McpPin>> | null = null;
  const listAnew = () => {
    listing = null;
  };
  client.setNotificationHandler('notifications/tools/list_changed', listAnew);
  // A broken notification stream may have swallowed a change of the list.
  client.onerror = listAnew;
  client.onclose = onEnd;
  try {
    await client.connect(made.transport, { timeout: connectTimeoutMs });
  } catch (error) {
    await made.transport.close();
    throw connectError(name, error, made.stderr());
  }
  let uses = 0;
  let isRetired = false;
  return {
    client,
    async offered() {
      // One request for all calls that ask at once; none of them may end it for the others.
      listing ??= listTools(client, connectTimeoutMs);
      try {
        return await listing;
      } catch (error) {
        listing = null;
        throw error;
      }
    },
    onStreamEnd: made.onStreamEnd,
    use() {
      uses += 1;
      return () => {
        uses -= 1;
        if (isRetired && uses === 0) closeInBackground(client);
      };
    },
    async closeWhenIdle() {
      isRetired = true;
      if (uses === 0) await client.close();
    },
  };
}

/** Nobody waits for this one: a server that does not end in time is killed by the transport. */
function closeInBackground(client: Client): void {
  client.close().catch((error: unknown) => {
    client.onerror?.(error instanceof Error ? error : new Error(String(error)));
  });
}

function connectError(name: string, cause: unknown, said: string): McpConnectError {
  const why = excerpt(cause instanceof Error ? cause.message : String(cause), 300);
  const wrote = said === '' ? '' : ` — it wrote: ${said}`;
  return new McpConnectError(`MCP server ${name} cannot be reached: ${why}${wrote}`);
}

const PAGES_MAX = 64;

async function listTools(client: Client, timeout: number): Promise<ReadonlyMap<string, McpPin>> {
  const pins = new Map<string, McpPin>();
  let cursor: string | undefined;
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const params = cursor === undefined ? {} : { cursor };
    const listed = await client.request({ method: 'tools/list', params }, { timeout });
    for (const tool of listed.tools) pins.set(tool.name, pinOf(tool));
    cursor = listed.nextCursor;
    if (cursor === undefined) return pins;
  }
  throw new McpConnectError(`The server lists more than ${PAGES_MAX} pages of tools.`);
}

function makeTransport(options: McpConnectionOptions): {
  transport: Transport;
  stderr: () => string;
  onStreamEnd: McpSession['onStreamEnd'];
} {
  const { server } = options;
  if (server.transport === 'http') {
    const streams = watchStreams();
    const transport = new StreamableHTTPClientTransport(new URL(server.url), {
      // A redirect would send the call a second time, to a place that nobody declared.
      requestInit: { headers: withSecrets(server.headers, options), redirect: 'manual' },
      fetch: streams.fetch,
      // One owner retries, and it is the run.
      reconnectionOptions: {
        maxRetries: 0,
        initialReconnectionDelay: 1000,
        maxReconnectionDelay: 1000,
        reconnectionDelayGrowFactor: 1,
      },
    });
    return { transport, stderr: () => '', onStreamEnd: streams.onEnd };
  }
  const transport = new StdioClientTransport({
    command: server.command,
    args: server.args,
    env: withSecrets(server.env, options),
    cwd: options.dir,
    stderr: 'pipe',
  });
  let kept = '';
  transport.stderr?.on('data', (chunk: Buffer) => {
    kept = (kept + chunk.toString('utf8')).slice(-STDERR_CHARACTERS_KEPT);
  });
  return {
    transport,
    stderr: () => excerpt(kept.trim().replace(/\s+/g, ' '), STDERR_CHARACTERS_KEPT),
    onStreamEnd: () => () => undefined,
  };
}

function withSecrets(
  texts: Readonly<Record<string, string>>,
  options: McpConnectionOptions,
): Record<string, string> {
  return Object.fromEntries(
    Object.entries(texts).map(([name, text]) => {
      const filled = expandSecrets(text, options.secrets);
      if (!filled.ok) throw new McpConnectError(`MCP server ${options.name}: ${filled.message}`);
      return [name, filled.value];
    }),
  );
}
