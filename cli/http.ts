import { randomUUID } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import type { Problem } from './api-types.js';
import { CliError } from './failures.js';

/** What a change was answered with. */
export interface Changed<T> {
  readonly status: number;
  readonly body: T;
  /** An earlier request with this key had done it. */
  readonly replayed: boolean;
}

/** The API as the commands use it. */
export interface ApiClient {
  readonly url: string;
  /** Reads; asks again where the API says `later`. */
  get<T>(path: string, query?: Query): Promise<T>;
  /** Changes something, once for its key: what is not answered is asked again under the same key, never under another. */
  post<T>(path: string, body: unknown, key: string): Promise<Changed<T>>;
  /** Everything of a paged list, page by page as it is taken, `limit` at most. */
  pages<T>(path: string, query: Query, member: string, limit: number): AsyncGenerator<T>;
  /** An answer to be read piece by piece: whatever its status is. @throws what fetch throws */
  open(path: string, headers: Readonly<Record<string, string>>, signal: AbortSignal): Promise<Response>;
}
export type Query = Readonly<Record<string, string | number | undefined>>;

export interface ClientOptions {
  /** Without a slash at its end. */
  readonly url: string;
  readonly actor: string | undefined;
  /** How long one command may take in all, asking again included. */
  readonly timeoutMs: number;
  readonly interrupted: AbortSignal;
  /** Hears of each time that something is asked again. */
  readonly onAgain: (why: string) => void;
}

/** Longest that one try is waited for. */
const TRY_MS = 10_000;
const PAGE_MAX = 100;

/** A key of an invocation's own. */
export const newKey = (): string => `cli-${randomUUID()}`;

export function createApiClient(options: ClientOptions): ApiClient {
  const { url, actor } = options;
  const identity: Record<string, string> = actor === undefined ? {} : { 'holdfast-actor': actor };
  const send = async (path: string, init: RequestInit, ms: number): Promise<Answer> => {
    const signal = AbortSignal.any([AbortSignal.timeout(ms), options.interrupted]);
    const headers = { accept: 'application/json', ...identity, ...init.headers };
    try {
      const response = await fetch(url + path, { ...init, headers, signal });
      return { kind: 'answer', response, text: await response.text() };
    } catch (error) {
      if (options.interrupted.aborted) throw interruptedError();
      return { kind: neverLeft(error) ? 'not_sent' : 'silent', why: whyOf(error) };
    }
  };
  const client: ApiClient = {
    url,
    async get(path, query = {}) {
      return bodyOf(await persist(options, null, (ms) => send(path + queryOf(query), {}, ms)), url);
    },
    async post(path, body, key) {
      const headers = { 'content-type': 'application/json', 'idempotency-key': key };
      const init = { method: 'POST', headers, body: JSON.stringify(body) };
      const answer = await persist(options, key, (ms) => send(path, init, ms));
      const replayed = answer.response.headers.get('idempotent-replayed') === 'true';
      return { status: answer.response.status, body: bodyOf(answer, url), replayed };
    },
    async *pages(path, query, member, limit) {
      let left = limit;
      let cursor: string | undefined;
      do {
        const page = await client.get<Record<string, unknown>>(path, {
          ...{ ...query, limit: Math.min(left, PAGE_MAX) },
          ...(cursor === undefined ? {} : { cursor }),
        });
        const rows = page[member];
        if (!Array.isArray(rows)) throw notTheApi(url, `a page without ${member}`);
        for (const row of rows) yield row as never;
        left -= rows.length;
        cursor = typeof page['next_cursor'] === 'string' ? page['next_cursor'] : undefined;
      } while (cursor !== undefined && left > 0);
    },
    open: (path, headers, signal) => fetch(url + path, { headers: { ...identity, ...headers }, signal }),
  };
  return client;
}

interface Answered {
  readonly kind: 'answer';
  readonly response: Response;
  readonly text: string;
}
type Answer =
  | Answered
  /** Proof that nothing left: nobody listens there. */
  | { readonly kind: 'not_sent'; readonly why: string }
  /** It may have arrived. */
  | { readonly kind: 'silent'; readonly why: string };

/**
 * Asks until it is answered or the time is over. A change whose fate is not known is asked about under its own key, which
 * does it at most once; what proves that nothing left is told at once. `key` is null for a read.
 */
async function persist(
  options: ClientOptions,
  key: string | null,
  attempt: (ms: number) => Promise<Answer>,
): Promise<Answered> {
  const deadline = Date.now() + options.timeoutMs;
  let unclear = false;
  for (let tries = 1; ; tries += 1) {
    const answer = await attempt(Math.max(1, Math.min(TRY_MS, deadline - Date.now())));
    const again = againOf(answer);
    if (answer.kind === 'answer' && again === null) return answer;
    // A read that nobody answered changes nothing; a change that never left neither, unless an earlier try may have.
    if (key !== null && (answer.kind === 'silent' || again?.unclear === true)) unclear = true;
    const waitMs = again?.waitMs ?? 250 * 2 ** Math.min(tries, 5);
    const gaveUp = Date.now() + waitMs >= deadline || (answer.kind === 'not_sent' && !unclear);
    if (gaveUp) throw giveUp(options.url, answer, unclear ? key : null);
    options.onAgain(answer.kind === 'answer' ? `answered ${answer.response.status}` : answer.why);
    await pause(waitMs, undefined, { signal: options.interrupted }).catch(() => {
      throw interruptedError();
    });
  }
}

/** Whether an answer says "later", and whether the change may have happened all the same; null for one that stands. */
function againOf(answer: Answer): { readonly unclear: boolean; readonly waitMs: number | undefined } | null {
  if (answer.kind !== 'answer') return null;
  const { status, headers } = answer.response;
  const problem = problemIn(answer);
  const isLater = problem === null ? status >= 500 : problem.retry === 'later';
  if (!isLater) return null;
  const seconds = Number(headers.get('retry-after') ?? 'none');
  return {
    unclear: status >= 500 || status === 409,
    waitMs: Number.isFinite(seconds) ? seconds * 1000 : undefined,
  };
}

function giveUp(url: string, answer: Answer, key: string | null): CliError {
  const problem = answer.kind === 'answer' ? problemIn(answer) : null;
  const why = answer.kind === 'answer' ? `it answered ${answer.response.status}` : answer.why;
  if (key !== null) {
    return new CliError(
      'unclear',
      'outcome_unclear',
      `${url} was sent the request and gave no final answer (${why}). It may have been done. ` +
        `Ask again with the same command and --key ${key}: it is done once, whatever came before.`,
      problem,
    );
  }
  if (problem !== null && answer.kind === 'answer' && answer.response.status < 500) {
    return new CliError('refused', problem.code, problem.detail, problem);
  }
  return new CliError(
    'not_reachable',
    problem?.code ?? 'not_reachable',
    `${problem?.detail ?? `${url} cannot be reached (${why}).`} Nothing was changed. ` +
      'Is it running (npm start), and is this its address? --api or HOLDFAST_API names another.',
    problem,
  );
}

function bodyOf<T>({ response, text }: Answered, url: string): T {
  const body = parsed(text);
  if (response.ok && body !== undefined) return body as T;
  throw refusalOf({ status: response.status, text }, url);
}

/** The failure that an answer which is no success stands for. */
export function refusalOf(answer: { readonly status: number; readonly text: string }, url: string): CliError {
  const problem = problemFrom(answer.text);
  if (problem === null) return notTheApi(url, `status ${answer.status}`);
  const exit = answer.status >= 500 ? 'not_reachable' : 'refused';
  return new CliError(exit, problem.code, problem.detail, problem);
}

/** Whoever answers there is somebody else. */
export function notTheApi(url: string, what: string): CliError {
  const message = `${url} answered with ${what}, as Holdfast's API would not. Is it the API's address?`;
  return new CliError('not_reachable', 'not_the_api', message);
}

export const interruptedError = (): CliError =>
  new CliError('interrupted', 'interrupted', 'Stopped by Ctrl-C.');

const problemIn = ({ text }: Answered): Problem | null => problemFrom(text);

function problemFrom(text: string): Problem | null {
  const body = parsed(text) as Partial<Problem> | null | undefined;
  return typeof body?.code === 'string' && typeof body.detail === 'string' ? (body as Problem) : null;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const NEVER_LEFT = [
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ERR_INVALID_URL',
];

/** Whether the error proves that not a byte of the request left. */
function neverLeft(error: unknown): boolean {
  return NEVER_LEFT.includes(codeOf(error));
}

function codeOf(error: unknown): string {
  const { cause, code } = error as { cause?: { code?: unknown; errors?: unknown }; code?: unknown };
  const first = Array.isArray(cause?.errors) ? (cause.errors[0] as { code?: unknown }).code : undefined;
  return String(cause?.code ?? first ?? code ?? '');
}

/** Why a request got no answer, in a few words. */
export function whyOf(error: unknown): string {
  if (error instanceof Error && error.name === 'TimeoutError') return 'no answer in time';
  return codeOf(error) || (error instanceof Error ? error.message : String(error));
}

function queryOf(query: Query): string {
  const told = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined) told.set(name, String(value));
  return told.size === 0 ? '' : `?${told}`;
}
