import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Argument, Option } from 'commander';
import type { RunFixture } from '../../shared/domain/fixture.js';
import type { JsonValue } from '../../shared/domain/json.js';
import { canonicalJson } from '../../shared/domain/strict-json.js';
import { type CommandGroup, type CommandSpec, group } from '../command.js';
import { CliError, type Exit } from '../failures.js';
import { newKey, whyOf } from '../http.js';
import { writeTo } from '../io.js';
import type { Session } from '../session.js';
import { pathOf, RUN } from './shared.js';

interface ExportOptions {
  readonly dir: string;
  readonly redact?: readonly string[];
  readonly redactWord?: readonly string[];
}

const more = (value: string, before: readonly string[] = []): string[] => [...before, value];

/** `holdfast fixture export`. */
const exportFixture: CommandSpec = {
  name: 'export',
  summary: 'Export a run that has ended as a regression fixture',
  description:
    'One file, named by the SHA-256 of its content: what the run was given, what the model and the tools answered, what people ' +
    'said and when, and the path it took. Secrets are never in it. What else must not leave is replaced everywhere by one ' +
    'placeholder, so that the replay still fits.',
  args: [RUN],
  options: [
    new Option('-d, --dir <folder>', 'where the file goes').default('.'),
    new Option(
      '--redact <pointer>',
      'replace what this JSON pointer into the document leads to (`*` for every member)',
    ).argParser(more),
    new Option('--redact-word <text>', 'replace this text wherever it stands').argParser(more),
  ],
  examples: [
    'fixture export run_0190… --dir test/fixtures',
    'fixture export run_0190… --redact /run/input/customer --redact-word "Margaret Hill"',
  ],
  async run(session, [runId], { dir, redact: pointers = [], redactWord: words = [] }: ExportOptions) {
    const path = pathOf('runs', runId, '/fixture');
    const isWhole = pointers.length + words.length === 0;
    const fixture = isWhole
      ? await session.api.get<RunFixture>(path)
      : (await session.api.post<RunFixture>(path, { pointers, words }, newKey())).body;
    const { sha256 } = fixture;
    const actual = createHash('sha256')
      .update(canonicalJson(fixture.document as unknown as JsonValue))
      .digest('hex');
    if (actual !== sha256) {
      throw new CliError(
        'failed',
        'fixture_not_whole',
        'The digest of the fixture is not that of its content. Read it again.',
      );
    }
    const file = join(dir, `${sha256}.json`);
    // Beside the file, so that it is there whole or not at all.
    const part = `${file}.${process.pid}.part`;
    try {
      await mkdir(dir, { recursive: true });
      await writeFile(part, canonicalJson(fixture as unknown as JsonValue));
      await rename(part, file);
    } catch (error) {
      throw new CliError('failed', 'file_not_written', `${file} cannot be written (${whyOf(error)}).`);
    }
    await session.out.one({ file, sha256, redacted: fixture.document.redacted }, () => [file]);
  },
};

interface RunOptions {
  readonly project?: string;
  readonly fault?: readonly string[];
}

/** `holdfast fixture run`: hands the files to the program that replays them, which asks no API. */
const runFixture: CommandSpec = {
  name: 'run',
  summary: 'Replay fixtures offline and compare',
  description:
    'On servers of its own, with a time that is skipped: asserts the path, the effects, the messages and that nothing new was ' +
    'called, and ends with 1 where something differs. Asks no API.',
  args: [new Argument('<file...>', 'what `fixture export` wrote')],
  options: [
    new Option('--project <file>', 'replay with the agent of this project in place of the pinned one'),
    new Option('--fault <point>', 'cut an activity off at this point, or at `every` one').argParser(more),
  ],
  examples: [
    'fixture run test/fixtures/*.json',
    'fixture run failed.json --project holdfast.yaml --fault every',
  ],
  async run(session, args, { project, fault = [] }: RunOptions) {
    const files = args.flat();
    return await replayer(session, [
      ...['run', ...(session.out.json ? ['--json'] : [])],
      ...(project === undefined ? [] : ['--project', project]),
      ...fault.flatMap((point) => ['--fault', point]),
      ...['--', ...files],
    ]);
  },
};

/** `holdfast fixture seal`. */
const sealFixture: CommandSpec = {
  name: 'seal',
  summary: 'Give a fixture that was edited on purpose its new digest and name',
  description: 'Such as one whose expectation now says what should have been. Asks no API.',
  args: [new Argument('<file>', 'the edited fixture')],
  examples: ['fixture seal test/fixtures/0b1f….json'],
  run: (session, [file]) => replayer(session, ['seal', '--', file ?? '']),
};

const REPLAYER = fileURLToPath(new URL('../../workers/fixture/main.ts', import.meta.url));

async function replayer({ io }: Session, args: readonly string[]): Promise<Exit> {
  const child = spawn(process.execPath, ['--import', import.meta.resolve('tsx'), REPLAYER, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...io.env },
  });
  // It takes its servers down before it ends.
  io.interrupted.addEventListener('abort', () => child.kill('SIGTERM'), { once: true });
  const copying = Promise.all([
    (async () => {
      for await (const chunk of child.stdout) await writeTo(io.stdout, chunk as Uint8Array);
    })(),
    (async () => {
      for await (const chunk of child.stderr) await writeTo(io.stderr, chunk as Uint8Array);
    })(),
  ]);
  const code = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject).once('close', resolve);
  });
  await copying;
  if (io.interrupted.aborted) return 'interrupted';
  return code === 0 ? 'ok' : 'failed';
}

/** `holdfast fixture`. */
export const fixtureGroup: CommandGroup = (cli) =>
  group(cli, 'fixture', 'Keep runs as regression fixtures and replay them offline', [
    exportFixture,
    runFixture,
    sealFixture,
  ]);
