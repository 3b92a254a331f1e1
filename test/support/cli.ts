import { PassThrough } from 'node:stream';
import { runCli } from '../../cli/run.js';
import { until } from './until.js';

/** How a command ended, and what it wrote. */
export interface CliEnd {
  readonly code: number;
  readonly out: string;
  readonly err: string;
  /** Standard output as JSON lines. */
  readonly rows: () => Record<string, unknown>[];
}

export interface CliOptions {
  readonly env?: Readonly<Record<string, string>>;
  /** What stands on standard input. */
  readonly stdin?: string;
  readonly interrupted?: AbortSignal;
  /** Hears of everything that standard output holds so far, as it grows. */
  readonly onOut?: (all: string) => void;
  /**
   * Everything is a terminal, at which somebody sits who types each of `keys` when they have read the words before it.
   */
  readonly terminal?: readonly { readonly read: string; readonly type: string }[];
}

/** Carries out one command line in this process, as in a pipe unless a terminal is given. */
export async function holdfast(
  url: string,
  args: readonly string[],
  options: CliOptions = {},
): Promise<CliEnd> {
  const isTTY = options.terminal !== undefined;
  const stream = () =>
    Object.assign(new PassThrough(), { isTTY, columns: 200, rows: 50, setRawMode: () => undefined });
  const [stdin, stdout, stderr] = [stream(), stream(), stream()];
  const written = { out: '', err: '' };
  stdout.on('data', (chunk: Buffer) => {
    written.out += chunk.toString();
    options.onOut?.(written.out);
  });
  stderr.on('data', (chunk: Buffer) => (written.err += chunk.toString()));
  if (options.stdin !== undefined) stdin.end(options.stdin);
  const never = new AbortController().signal;
  const running = runCli(args, {
    ...{ stdin, stdout, stderr, interrupted: options.interrupted ?? never },
    env: { HOLDFAST_API: url, HOLDFAST_ACTOR: 'cleo', NO_COLOR: '1', ...options.env },
  });
  for (const { read, type } of options.terminal ?? []) {
    await until(`the terminal shows: ${read}`, () => written.err.includes(read));
    stdin.write(type);
  }
  const code = await running;
  return {
    code,
    ...written,
    rows: () =>
      written.out
        .split('\n')
        .filter((line) => line !== '')
        .map((line) => JSON.parse(line) as Record<string, unknown>),
  };
}

/** Options of `runs start` that make a complete contract. */
export const CONTRACT = [
  '--objective',
  'Settle it.',
  '--rule',
  'Stated.',
  '--accepted-by',
  'desk',
  '--owner',
  'desk',
];
