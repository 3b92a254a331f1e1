import { canonicalJson, checkJsonValue } from '../../shared/domain/strict-json.js';
import { createAddressGuard, hostOf, parseAllowEntry } from '../../shared/process/address-guard.js';
import type { AddressGuard, AllowEntry } from '../../shared/process/address-guard.js';
import { notSentAnswer } from './answers.js';
import { openDeadline } from './deadline.js';
import type { Deadline } from './deadline.js';
import { digestDeclaration, readDeclaration, ToolDeclarationError } from './declaration.js';
import { policyOf } from './effect-policy.js';
import { expandEnv, expandSecrets, missingSecrets } from './expand.js';
import type { LookUp } from './expand.js';
import { httpToolProblems } from './http-checks.js';
import { httpToolSchema } from './http-format.js';
import type { HttpProbeDeclaration, HttpToolDeclaration } from './http-format.js';
import { judgeCall, judgeProbe } from './http-outcomes.js';
import { exchange } from './http-request.js';
import type { Exchange, HttpRequest } from './http-request.js';
import { openSocket, portOf } from './http-socket.js';
import type { ResolveHost } from './http-socket.js';
import { isWholeUrlTemplate, KEY_PLACEHOLDER, renderBody, renderUrl } from './http-template.js';
import type { TemplateValues } from './http-template.js';
import { fitsOf } from './input-schema.js';
import type { Fits } from './input-schema.js';
import type { NotSentReason } from './reasons.js';
import type { ProbeAnswer, Tool, ToolAnswer, ToolCall, ToolQuery } from './tool.js';

/** What an HTTP tool is made with. */
export interface HttpToolDeps {
  /** Fills `${env:NAME:-default}` in URLs and the allow list, once, when the tool is made. */
  readonly env: LookUp;
  /** Fills `${secret:NAME}` in headers, at each dispatch. */
  readonly secrets: LookUp;
  /** The system's resolver by default. */
  readonly resolve?: ResolveHost;
}

/**
 * Makes a tool of an HTTP endpoint.
 *
 * One call is one request over one fresh connection: nothing is retried, no redirect is followed. The
 * version is the digest of the declaration as it is written, so `${env:…}` and secrets, which differ
 * from machine to machine, are no part of it.
 *
 * @param declaration as parsed from a project file, before defaults
 * @throws ToolDeclarationError with every problem of the declaration
 */
export function createHttpTool(name: string, declaration: unknown, deps: HttpToolDeps): Tool {
  const parsed = readDeclaration(httpToolSchema, declaration);
  if (!parsed.ok) throw new ToolDeclarationError(name, parsed.problems);
  const expanded = expandPlaces(parsed.value, deps.env);
  // With a place missing there is nothing whole to judge.
  const problems =
    expanded.problems.length > 0 ? expanded.problems : httpToolProblems(name, expanded.declaration);
  if (problems.length > 0) throw new ToolDeclarationError(name, problems);
  const declared = expanded.declaration;
  const { description, input: inputSchema, timeoutSeconds, probe } = declared;
  const client = new HttpClient(declared, deps);
  return {
    name,
    description,
    inputSchema,
    version: digestDeclaration(name, { kind: 'http', name, ...parsed.value }),
    effect: policyOf(declared, name),
    parallel: declared.parallel ?? declared.class === 'read',
    short: declared.short,
    timeoutSeconds,
    call: (call) => client.call(call),
    missingSecrets: () => missingSecrets({ ...probe?.headers, ...declared.headers }, deps.secrets),
    ...(probe === undefined ? {} : { probe: (query) => client.probe(probe, query) }),
  };
}

/** Asks one endpoint; everything that a call needs and that no call changes. */
class HttpClient {
  private readonly declared: HttpToolDeclaration;
  private readonly deps: HttpToolDeps;
  private readonly guard: AddressGuard;
  private readonly fits: Fits | undefined;

  constructor(declared: HttpToolDeclaration, deps: HttpToolDeps) {
    this.declared = declared;
    this.deps = deps;
    this.guard = createAddressGuard(allowedPlaces(declared));
    const output = declared.output === undefined ? undefined : fitsOf(declared.output);
    this.fits = typeof output === 'function' ? output : undefined;
  }

  async call(call: ToolCall): Promise<ToolAnswer> {
    const { declared } = this;
    const deadline = openDeadline(call, declared.timeoutSeconds * 1000);
    try {
      const values = { arguments: call.arguments, idempotencyKey: call.idempotencyKey };
      const body = bodyOf(declared, values);
      if (body === 'arguments_invalid') return notSentAnswer(body);
      const { keyHeader } = declared;
      const keyed = keyHeader === undefined ? {} : { [keyHeader]: call.idempotencyKey };
      const result = await this.ask(declared, values, { method: declared.method, body, keyed }, deadline);
      if (typeof result === 'string') return notSentAnswer(result);
      const { reference, keyEcho, expects, answers } = declared;
      const reading = { rules: answers, reference, keyEcho, expects, fits: this.fits };
      const { limiterRunsBeforeExecution } = declared;
      const target = { limiterRunsBeforeExecution, isRead: declared.class === 'read' };
      return judgeCall(result, reading, target, { ...values, nowMs: Date.now() });
    } finally {
      deadline.end();
    }
  }

  async probe(probe: HttpProbeDeclaration, query: ToolQuery): Promise<ProbeAnswer> {
    const deadline = openDeadline(query, this.declared.timeoutSeconds * 1000);
    try {
      const values = { arguments: query.arguments, idempotencyKey: query.idempotencyKey };
      const result = await this.ask(probe, values, { method: 'GET', body: null, keyed: {} }, deadline);
      if (typeof result === 'string') return { kind: 'inconclusive', reason: result, body: null };
      const { reference, keyEcho, expects, answers } = probe;
      return judgeProbe(result, { rules: answers, reference, keyEcho, expects, fits: undefined }, values);
    } finally {
      deadline.end();
    }
  }

  private async ask(
    place: Pick<HttpToolDeclaration, 'url' | 'parameters' | 'headers'>,
    values: TemplateValues,
    what: Pick<HttpRequest, 'method' | 'body'> & { readonly keyed: Readonly<Record<string, string>> },
    deadline: Deadline,
  ): Promise<Exchange | NotSentReason> {
    const url = renderUrl(place.url, place.parameters, values);
    if (!url.ok) return 'arguments_invalid';
    const headers = headersOf(place.headers, values, this.deps.secrets);
    if (headers === null) return 'secret_missing';
    const opened = await openSocket(url.value, {
      guard: this.guard,
      connectTimeoutMs: this.declared.connectTimeoutSeconds * 1000,
      signal: deadline.signal,
      ...(this.deps.resolve === undefined ? {} : { resolve: this.deps.resolve }),
    });
    const cause = deadline.cause();
    if (cause !== null && opened.kind === 'open') opened.socket.destroy();
    if (cause !== null) return cause === 'timed_out' ? 'timed_out_before_send' : 'aborted_before_send';
    if (opened.kind === 'not_sent') return opened.reason;
    const request = {
      method: what.method,
      url: url.value,
      headers: {
        accept: 'application/json',
        ...(what.body === null ? {} : { 'content-type': 'application/json' }),
        ...headers,
        ...what.keyed,
      },
      body: what.body,
    };
    let sent: Promise<Exchange>;
    try {
      sent = exchange(opened.socket, request, deadline);
    } catch {
      // Node refuses a header that HTTP cannot carry, such as a secret with a line break, before it sends.
      // Its message quotes the value, so it is not kept.
      opened.socket.destroy();
      return 'request_invalid';
    }
    return sent;
  }
}

function bodyOf(
  declared: HttpToolDeclaration,
  values: TemplateValues,
): Uint8Array | null | 'arguments_invalid' {
  if (declared.body === undefined) return null;
  const rendered =
    declared.body === 'arguments'
      ? ({ ok: true, value: values.arguments } as const)
      : renderBody(declared.body, values);
  const checked = checkJsonValue(rendered.ok ? rendered.value : undefined);
  if (!checked.ok) return 'arguments_invalid';
  // Canonical, so that every attempt of one effect sends the same bytes.
  return new TextEncoder().encode(canonicalJson(checked.value));
}

function headersOf(
  templates: Readonly<Record<string, string>>,
  values: TemplateValues,
  secrets: LookUp,
): Record<string, string> | null {
  const headers: Record<string, string> = {};
  for (const [name, template] of Object.entries(templates)) {
    const filled = expandSecrets(template.replaceAll(`{${KEY_PLACEHOLDER}}`, values.idempotencyKey), secrets);
    if (!filled.ok) return null;
    headers[name.toLowerCase()] = filled.value;
  }
  return headers;
}

/** The declaration with the places of this machine filled in: URLs and the allow list. */
function expandPlaces(declared: HttpToolDeclaration, env: LookUp) {
  const problems: { path: (string | number)[]; message: string }[] = [];
  const fill = (text: string, path: (string | number)[]): string => {
    const filled = expandEnv(text, env);
    if (filled.ok) return filled.value;
    problems.push({ path, message: filled.message });
    return text;
  };
  const { probe } = declared;
  const declaration: HttpToolDeclaration = {
    ...declared,
    url: fill(declared.url, ['url']),
    allow: declared.allow.map((entry, index) => fill(entry, ['allow', index])),
    ...(probe === undefined ? {} : { probe: { ...probe, url: fill(probe.url, ['probe', 'url']) } }),
  };
  return { declaration, problems };
}

/** The places a tool may reach: its allow list, and the hosts that its own URLs name. */
function allowedPlaces(declared: HttpToolDeclaration): AllowEntry[] {
  const own = [declared.url, ...(declared.probe === undefined ? [] : [declared.probe.url])]
    .filter((template) => !isWholeUrlTemplate(template))
    .map((template) => ownPlace(template));
  const listed = declared.allow
    .map((entry) => parseAllowEntry(entry))
    .filter((entry) => typeof entry !== 'string');
  return [...listed, ...own];
}

/** By name only, also for an address, so that a private one must stand in the allow list all the same. */
function ownPlace(template: string): AllowEntry {
  const url = new URL(template.replace(/\{[^}]*\}/g, 'x'));
  return { port: portOf(url), name: hostOf(url.hostname), addresses: null };
}
