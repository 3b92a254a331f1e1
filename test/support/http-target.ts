import { createHash } from 'node:crypto';
import { closeSync, existsSync, fsyncSync, openSync, readFileSync, truncateSync, writeSync } from 'node:fs';
import { createServer } from 'node:http';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { pathToFileURL } from 'node:url';

/** How the target treats a key: honours it, can be asked about it, or neither; `read` changes nothing. */
export const TARGET_CLASSES = ['keyed', 'queryable', 'opaque', 'read'] as const;
export type TargetClass = (typeof TARGET_CLASSES)[number];

/** What the next request meets. `…_before`: nothing is applied. `…_after`: applied, then the fault. */
export const TARGET_MODES = [
  'ok',
  'hold_before',
  'hold_after',
  'drop_before',
  'drop_after',
  'error_500_before',
  'error_500_after',
  'refuse_422',
  'not_found_404',
  'late',
  'slow_drip',
  'truncated',
  'invalid_json',
  'wrong_type',
  'in_progress_409',
  'throttle_429',
  'overloaded_503',
  'redirect_302',
  'big_body',
  'nul_body',
  'deep_body',
  'empty_body',
  'no_content_204',
  'two_answers',
  'other_key_echo',
] as const;
export type TargetMode = (typeof TARGET_MODES)[number];

/** One fault, set for the next `times` matching requests. */
export interface Dial {
  readonly mode: TargetMode;
  /** Only requests with this key; all by default. */
  readonly key?: string;
  /** Default: every request from now on. */
  readonly times?: number;
  /** For `late`, and between the bytes of `slow_drip`. Default 50. */
  readonly delayMs?: number;
  /** For `throttle_429`, `overloaded_503`, `in_progress_409`; sent as it stands. */
  readonly retryAfter?: string;
}

/** One line of the target's own log, on disk before the request is answered. */
export interface TargetLogEntry {
  readonly at: string;
  readonly key: string;
  readonly kind: 'arrived' | 'applied';
  readonly class: TargetClass;
  /** Lower-case hex SHA-256 of the request's body as it came. */
  readonly argsDigest: string;
  /** The body as JSON, or as text where it is none. */
  readonly body: unknown;
  /** The request's credential, where it had one. */
  readonly authorization?: string;
}

/** A running target. */
export interface HttpTarget {
  readonly url: string;
  readonly port: number;
  readonly logPath: string;
  /** Sets a fault; the newest that matches counts. `reset` takes all away. */
  dial(dial: Dial): void;
  reset(): void;
  /** The next `answers` status queries of queryable keys say "not found". */
  hideApplied(answers: number): void;
  /** Lets the requests go on that are held now; returns how many were. */
  release(): number;
  /** Requests that are held now. */
  held(): number;
  log(): TargetLogEntry[];
  close(): Promise<void>;
}

/** Reads a target's log; a torn last line, left by a kill, is no entry. */
export function readTargetLog(logPath: string): TargetLogEntry[] {
  if (!existsSync(logPath)) return [];
  const lines = readFileSync(logPath, 'utf8').split('\n');
  // What follows the last line break was never finished.
  return lines.slice(0, -1).map((line) => JSON.parse(line) as TargetLogEntry);
}

/**
 * Starts the target on 127.0.0.1. What it applied before, by its log, it still knows.
 *
 * `POST /keyed`, `/queryable`, `/opaque` apply (the key is the header Idempotency-Key), `GET /read`,
 * `/read/<any>` reads, `GET /keyed/<key>` and `/queryable/<key>` answer a status query.
 * `POST /control/dial|reset|release|hide`, `GET /control/log` steer it from another process.
 */
export async function startHttpTarget(options: { logPath: string; port?: number }): Promise<HttpTarget> {
  const target = new Target(options.logPath);
  const server = createServer((request, response) => {
    target.serve(request, response).catch((error: unknown) => {
      response.destroy(error instanceof Error ? error : new Error(String(error)));
    });
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(options.port ?? 0, '127.0.0.1', resolve);
  });
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    port,
    logPath: options.logPath,
    dial: (dial) => {
      target.dials.unshift({ ...dial, left: dial.times ?? Infinity });
    },
    reset: () => {
      target.reset();
    },
    hideApplied: (answers) => {
      target.hidden = answers;
    },
    release: () => target.release(),
    held: () => target.waiting.length,
    log: () => readTargetLog(options.logPath),
    async close() {
      target.reset();
      const closed = new Promise<void>((resolve) =>
        server.close(() => {
          resolve();
        }),
      );
      server.closeAllConnections();
      await closed;
      target.close();
    },
  };
}

interface Applied {
  readonly argsDigest: string;
  readonly answer: Record<string, unknown>;
}

class Target {
  readonly dials: (Dial & { left: number })[] = [];
  readonly waiting: (() => void)[] = [];
  hidden = 0;
  private readonly applied = new Map<string, Applied>();
  private readonly logPath: string;
  private readonly file: number;
  private count = 0;

  constructor(logPath: string) {
    this.logPath = logPath;
    for (const entry of readTargetLog(logPath)) if (entry.kind === 'applied') this.remember(entry);
    // A torn last line, left by a kill, must not run into the next one.
    if (existsSync(logPath)) {
      truncateSync(logPath, readFileSync(logPath).lastIndexOf('\n') + 1);
    }
    this.file = openSync(logPath, 'a');
  }

  reset(): void {
    this.dials.length = 0;
    this.hidden = 0;
    this.release();
  }

  release(): number {
    const held = this.waiting.splice(0);
    for (const go of held) go();
    return held.length;
  }

  close(): void {
    closeSync(this.file);
  }

  async serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const [, place = '', rest = ''] = (request.url ?? '/').split('?', 1)[0]?.split('/') ?? [];
    const body = await readBody(request);
    if (place === 'control') return this.control(rest, body, response);
    const kind = TARGET_CLASSES.find((name) => name === place);
    if (kind === undefined) return answer(response, 404, { error: 'no such place' });
    const isQuery = request.method === 'GET' && kind !== 'read';
    const key = isQuery ? decodeURIComponent(rest) : String(request.headers['idempotency-key'] ?? '');
    if (isQuery) return this.answerQuery(kind, key, response);
    this.write('arrived', kind, key, body, request.headers.authorization);
    const dial = this.takeDial(key);
    await this.act(kind, key, body, dial, response);
  }

  private async act(
    kind: TargetClass,
    key: string,
    body: string,
    dial: Dial,
    response: ServerResponse,
  ): Promise<void> {
    const { mode } = dial;
    if (mode === 'hold_before') await this.hold();
    if (mode === 'drop_before') return void response.socket?.destroy();
    if (refuse(dial, response)) return;
    const earlier = kind === 'keyed' ? this.applied.get(idOf(kind, key)) : undefined;
    if (earlier !== undefined && earlier.argsDigest !== digestOf(body)) {
      return answer(response, 409, { error: 'key_conflict' });
    }
    const result = earlier?.answer ?? this.apply(kind, key, body);
    if (mode === 'hold_after') await this.hold();
    if (mode === 'late') await delay(dial.delayMs ?? 50);
    if (mode === 'drop_after') return void response.socket?.destroy();
    if (mode === 'error_500_after') return answer(response, 500, { error: 'after the commit' });
    const spoil = SPOILERS[mode];
    if (spoil === undefined) answer(response, 200, result);
    else await spoil(response, result, dial);
  }

  private apply(kind: TargetClass, key: string, body: string): Record<string, unknown> {
    if (kind === 'read') return { value: 42 };
    return this.remember(this.write('applied', kind, key, body)).answer;
  }

  private remember(entry: TargetLogEntry): Applied {
    this.count += 1;
    const made = { id: `obj_${this.count}`, key: entry.key, status: 'done' };
    const applied = { argsDigest: entry.argsDigest, answer: made };
    this.applied.set(idOf(entry.class, entry.key), applied);
    return applied;
  }

  private answerQuery(kind: TargetClass, key: string, response: ServerResponse): void {
    const found = this.applied.get(idOf(kind, key));
    if (found !== undefined && this.hidden > 0) this.hidden -= 1;
    else if (found !== undefined) return answer(response, 200, found.answer);
    return answer(response, 404, { error: 'unknown key' });
  }

  private takeDial(key: string): Dial {
    const dial = this.dials.find((each) => each.left > 0 && (each.key === undefined || each.key === key));
    if (dial === undefined) return { mode: 'ok' };
    dial.left -= 1;
    return dial;
  }

  private hold(): Promise<void> {
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  /** On disk before anything is answered: this log is the truth that the ledger is compared with. */
  private write(
    kind: 'arrived' | 'applied',
    type: TargetClass,
    key: string,
    body: string,
    authorization?: string,
  ): TargetLogEntry {
    const at = new Date().toISOString();
    const entry: TargetLogEntry = {
      ...{ at, key, kind, class: type, argsDigest: digestOf(body), body: jsonOrText(body) },
      ...(authorization === undefined ? {} : { authorization }),
    };
    writeSync(this.file, `${JSON.stringify(entry)}\n`);
    fsyncSync(this.file);
    return entry;
  }

  private control(order: string, body: string, response: ServerResponse): void {
    const asked = (body === '' ? {} : JSON.parse(body)) as Record<string, unknown>;
    if (order === 'dial') {
      const dial = asked as unknown as Dial;
      this.dials.unshift({ ...dial, left: dial.times ?? Infinity });
    } else if (order === 'reset') this.reset();
    else if (order === 'hide') this.hidden = Number(asked['answers']);
    else if (order === 'release') return answer(response, 200, { released: this.release() });
    else if (order === 'log') return answer(response, 200, { entries: readTargetLog(this.logPath) });
    else return answer(response, 404, { error: 'no such order' });
    answer(response, 200, { held: this.waiting.length });
  }
}

/** Answers that come before anything is applied, by mode. */
const REFUSALS: Readonly<Partial<Record<TargetMode, readonly [number, string]>>> = {
  error_500_before: [500, 'before anything'],
  refuse_422: [422, 'refused'],
  not_found_404: [404, 'unknown thing'],
  in_progress_409: [409, 'key_in_progress'],
  throttle_429: [429, 'slow down'],
  overloaded_503: [503, 'overloaded'],
  redirect_302: [302, 'elsewhere'],
};

/** Gives the answer that comes before anything is applied; false when the mode has none. */
function refuse(dial: Dial, response: ServerResponse): boolean {
  const [status, error] = REFUSALS[dial.mode] ?? [];
  if (status === undefined) return false;
  const later = dial.retryAfter === undefined ? {} : { 'retry-after': dial.retryAfter };
  const elsewhere = status === 302 ? { location: '/opaque' } : {};
  answer(response, status, { error }, { ...later, ...elsewhere });
  return true;
}

type Spoil = (response: ServerResponse, result: Record<string, unknown>, dial: Dial) => unknown;
const JSON_TYPE = { 'content-type': 'application/json' };

/** Ways to spoil the answer to something that was applied, by mode. */
const SPOILERS: Readonly<Partial<Record<TargetMode, Spoil>>> = {
  slow_drip: drip,
  truncated(response, result) {
    const text = JSON.stringify(result);
    response.writeHead(200, { ...JSON_TYPE, 'content-length': text.length + 100 });
    response.write(text, () => response.socket?.destroy());
  },
  invalid_json: (response) => response.writeHead(200, JSON_TYPE).end('{"id": '),
  wrong_type: (response, result) =>
    response.writeHead(200, { 'content-type': 'text/html' }).end(JSON.stringify(result)),
  big_body: (response, result) => answer(response, 200, { ...result, filler: 'x'.repeat(3_000_000) }),
  nul_body: (response, result) => answer(response, 200, { ...result, note: 'a\u0000b' }),
  deep_body: (response) => response.writeHead(200, JSON_TYPE).end('['.repeat(5000) + ']'.repeat(5000)),
  empty_body: (response) => response.writeHead(200, { ...JSON_TYPE, 'content-length': 0 }).end(),
  no_content_204: (response) => response.writeHead(204).end(),
  other_key_echo: (response, result) => answer(response, 200, { ...result, key: 'somebody-elses-key' }),
  two_answers(response, result) {
    const text = JSON.stringify(result);
    const head = 'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n';
    const one = `${head}content-length: ${text.length}\r\n\r\n${text}`;
    response.socket?.write(one + one.replace('done', 'fake'));
  },
};

async function drip(response: ServerResponse, result: Record<string, unknown>, dial: Dial): Promise<void> {
  const text = JSON.stringify(result);
  response.writeHead(200, { ...JSON_TYPE, 'content-length': text.length });
  for (const character of text) {
    if (response.destroyed) return;
    response.write(character);
    await delay(dial.delayMs ?? 50);
  }
  response.end();
}

function answer(
  response: ServerResponse,
  status: number,
  body: Record<string, unknown>,
  headers: Record<string, string> = {},
): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(JSON.stringify(body));
}

async function readBody(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString('utf8');
}

function idOf(kind: TargetClass, key: string): string {
  return `${kind} ${key}`;
}

function digestOf(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

function jsonOrText(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    // Whatever arrived is logged; text that is no JSON is logged as text.
    return text;
  }
}

function delay(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** `node --import tsx test/support/http-target.ts --log <file> [--port <n>]` runs it as its own process. */
async function main(args: readonly string[]): Promise<void> {
  const valueOf = (flag: string) => (args.includes(flag) ? args[args.indexOf(flag) + 1] : undefined);
  const logPath = valueOf('--log');
  if (logPath === undefined) throw new Error('Give the path of the log: --log <file>.');
  const target = await startHttpTarget({ logPath, port: Number(valueOf('--port') ?? 0) });
  const ready = { kind: 'ready', url: target.url, port: target.port };
  process.stdout.write(`${JSON.stringify(ready)}\n`);
  process.send?.(ready);
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main(process.argv.slice(2));
