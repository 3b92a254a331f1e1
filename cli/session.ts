import type { Command } from 'commander';
import { CliError, usageError } from './failures.js';
import { type ApiClient, createApiClient, newKey } from './http.js';
import { canAsk, colorsOf, type Io } from './io.js';
import { createOutput, type Output } from './output.js';
import { confirm } from './ask.js';
import { type Progress, showProgress } from './progress.js';

/** What a command is carried out with. */
export interface Session {
  readonly io: Io;
  readonly api: ApiClient;
  readonly out: Output;
  /** `--yes`. */
  readonly yes: boolean;
  /**
   * The idempotency key of this invocation: `--key`, or a new one, which is shown before anything is sent, so that whoever
   * gets no answer can ask again.
   */
  key(): Promise<string>;
  /** Asks for a yes where somebody can be asked. @throws CliError where nobody can, without `--yes`, or who says no */
  confirm(question: string): Promise<void>;
  /** Shows on a terminal that something goes on; the result ends it. */
  progress(text: string): Progress;
}

/** The options that every command has. */
export interface GlobalOptions {
  readonly api?: string;
  readonly actor?: string;
  readonly json?: boolean;
  readonly table?: boolean;
  readonly timeout: number;
  readonly yes?: boolean;
  readonly key?: string;
}

const API_DEFAULT = 'http://127.0.0.1:8321';

/** The session that the options of `command` and the environment ask for. */
export function openSession(io: Io, command: Command): Session {
  const options = command.optsWithGlobals<GlobalOptions>();
  const out = createOutput(io, options);
  const colors = colorsOf(io, 'stderr');
  const shown = canAsk(io);
  const api = createApiClient({
    url: apiUrl(options.api ?? (io.env['HOLDFAST_API'] || API_DEFAULT)),
    actor: options.actor ?? (io.env['HOLDFAST_ACTOR'] || undefined),
    timeoutMs: options.timeout * 1000,
    interrupted: io.interrupted,
    onAgain: (why) => {
      if (shown) void out.note(colors.dim(`holdfast: ${why}; asking again`));
    },
  });
  return {
    ...{ io, api, out, yes: options.yes === true },
    async key() {
      const key = options.key ?? newKey();
      await out.note(colors.dim(`holdfast: the key of this request is ${key}`));
      return key;
    },
    async confirm(question) {
      if (options.yes === true) return;
      if (!canAsk(io)) {
        throw usageError(`${question} Nobody can be asked here: say --yes. Nothing was sent.`);
      }
      if (!(await confirm(io, question))) {
        throw new CliError('failed', 'not_confirmed', 'You said no. Nothing was sent.');
      }
    },
    progress: (text) => showProgress(io, text),
  };
}

function apiUrl(text: string): string {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url === null || !/^https?:$/.test(url.protocol)) {
    throw usageError(`${text} is no address of an API. Give one such as ${API_DEFAULT}.`);
  }
  if (url.username !== '' || url.password !== '') {
    throw usageError('An address holds no user name and no password: it would stand in logs.');
  }
  return url.href.replace(/\/+$/, '');
}
