import { createHash } from 'node:crypto';
import { open, rename, rm } from 'node:fs/promises';
import { Option } from 'commander';
import type { CommandSpec } from '../command.js';
import { CliError } from '../failures.js';
import { interruptedError, refusalOf, whyOf } from '../http.js';
import { writeTo } from '../io.js';
import type { Session } from '../session.js';
import { pathOf, RUN } from './shared.js';

/** `holdfast runs export`. */
export const exportRun: CommandSpec = {
  name: 'export',
  summary: 'Export everything that the ledger holds of a run',
  description:
    'The digest at its end is recomputed: what was cut off or changed on the way fails. With --out the file is there whole or ' +
    'not at all.',
  args: [RUN],
  options: [new Option('-o, --out <file>', 'write to this file instead of standard output')],
  examples: ['runs export run_0190… --out run.json', 'runs export run_0190… | gzip > run.json.gz'],
  async run(session, [runId], { out: file }: { readonly out?: string }) {
    const path = pathOf('runs', runId, '/export');
    if (file === undefined) {
      await download(session, path, (piece) => writeTo(session.io.stdout, piece));
      return;
    }
    // Beside the file, so that the rename is one move within one file system.
    const part = `${file}.${process.pid}.part`;
    const target = await open(part, 'wx').catch((error: unknown) => {
      throw new CliError('failed', 'file_not_written', `${part} cannot be written (${whyOf(error)}).`);
    });
    try {
      const { bytes, sha256 } = await download(session, path, async (piece) => {
        await target.writeFile(piece);
      });
      await target.sync();
      await rename(part, file);
      await session.out.one({ file, bytes, sha256 }, () => [`${file}  ${bytes} bytes  sha256 ${sha256}`]);
    } catch (error) {
      await rm(part, { force: true });
      throw error;
    } finally {
      await target.close();
    }
  },
};

const HEAD = '{"document":';
const TAIL = /,"sha256":"([0-9a-f]{64})"\}\s*$/;
const TAIL_BYTES_MAX = 100;

/** Writes the export as it comes, and holds no more of it than its end. */
async function download(
  { api, io, progress }: Session,
  path: string,
  write: (piece: Buffer) => Promise<void>,
): Promise<{ readonly bytes: number; readonly sha256: string }> {
  const shown = progress('exporting');
  const digest = createHash('sha256');
  let bytes = 0;
  let head = Buffer.alloc(0);
  let tail = Buffer.alloc(0);
  try {
    const response = await api.open(path, { accept: 'application/json' }, io.interrupted);
    if (!response.ok || response.body === null) {
      throw refusalOf({ status: response.status, text: await response.text() }, api.url);
    }
    for await (const chunk of response.body) {
      const piece = Buffer.from(chunk as Uint8Array);
      await write(piece);
      bytes += piece.length;
      shown.say(`exporting: ${bytes} bytes`);
      let rest = Buffer.concat([tail, piece]);
      if (head.length < HEAD.length) {
        const missing = HEAD.length - head.length;
        head = Buffer.concat([head, rest.subarray(0, missing)]);
        rest = rest.subarray(missing);
      }
      digest.update(rest.subarray(0, Math.max(0, rest.length - TAIL_BYTES_MAX)));
      tail = rest.subarray(Math.max(0, rest.length - TAIL_BYTES_MAX));
    }
  } catch (error) {
    if (error instanceof CliError) throw error;
    if (io.interrupted.aborted) throw interruptedError();
    if (bytes === 0) {
      throw new CliError(
        'not_reachable',
        'not_reachable',
        `${api.url} gave no export (${whyOf(error)}). Try again.`,
      );
    }
    throw cutOff(`the answer broke off (${whyOf(error)})`);
  } finally {
    shown.stop();
  }
  const match = TAIL.exec(tail.toString('latin1'));
  if (head.toString() !== HEAD || match === null) throw cutOff('it has no digest at its end');
  const sha256 = digest.update(tail.subarray(0, match.index)).digest('hex');
  if (sha256 !== match[1]) throw cutOff('its digest is not that of its content');
  return { bytes, sha256 };
}

function cutOff(why: string): CliError {
  return new CliError('failed', 'export_not_whole', `The export is not whole: ${why}. Read it again.`);
}
