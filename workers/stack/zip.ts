import { createReadStream, createWriteStream } from 'node:fs';
import { open } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { PassThrough } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createInflateRaw } from 'node:zlib';

const END_OF_DIRECTORY = 0x06054b50;
const DIRECTORY_ENTRY = 0x02014b50;
const LOCAL_HEADER = 0x04034b50;

interface Entry {
  readonly name: string;
  readonly method: number;
  readonly packedBytes: number;
  readonly bytes: number;
  readonly headerAt: number;
}

/**
 * Writes the one file of a zip whose name ends in `suffix` to `target`. Knows what wheels use (stored
 * and deflated entries below 4 GiB) and refuses the rest. Check the archive's digest before: this
 * guards against mistakes, not against malice.
 *
 * @throws Error when there is not exactly one such file, or its size is not the promised one
 */
export async function extractOne(zipPath: string, suffix: string, target: string): Promise<void> {
  const file = await open(zipPath);
  let entry: Entry;
  let start: number;
  try {
    const found = (await readDirectory(file, zipPath)).filter(({ name }) => name.endsWith(suffix));
    if (found.length !== 1 || !found[0]) {
      throw new Error(`${zipPath} holds ${found.length} files that end in ${suffix}, where one is wanted`);
    }
    entry = found[0];
    start = await contentStart(file, entry, zipPath);
  } finally {
    await file.close();
  }
  if (entry.method !== 0 && entry.method !== 8) {
    throw new Error(`${entry.name} in ${zipPath} is packed by method ${entry.method}, which is not known`);
  }
  const output = createWriteStream(target, { flags: 'wx' });
  await pipeline(
    createReadStream(zipPath, { start, end: start + entry.packedBytes - 1 }),
    entry.method === 8 ? createInflateRaw() : new PassThrough(),
    output,
  );
  if (output.bytesWritten !== entry.bytes) {
    throw new Error(`${entry.name} in ${zipPath} has ${output.bytesWritten} bytes, not ${entry.bytes}`);
  }
}

async function readDirectory(file: FileHandle, zipPath: string): Promise<Entry[]> {
  const { size } = await file.stat();
  // The end record is 22 bytes, followed by a comment of at most 65,535.
  const tail = await readAt(file, Math.max(0, size - 65_557), Math.min(size, 65_557));
  const end = tail.lastIndexOf(Buffer.from([0x50, 0x4b, 0x05, 0x06]));
  if (end < 0 || tail.readUInt32LE(end) !== END_OF_DIRECTORY)
    throw new Error(`${zipPath} is not a zip archive`);
  const directory = await readAt(file, tail.readUInt32LE(end + 16), tail.readUInt32LE(end + 12));
  const entries: Entry[] = [];
  let at = 0;
  while (at + 46 <= directory.length && directory.readUInt32LE(at) === DIRECTORY_ENTRY) {
    const nameBytes = directory.readUInt16LE(at + 28);
    entries.push({
      method: directory.readUInt16LE(at + 10),
      packedBytes: directory.readUInt32LE(at + 20),
      bytes: directory.readUInt32LE(at + 24),
      headerAt: directory.readUInt32LE(at + 42),
      name: directory.toString('utf8', at + 46, at + 46 + nameBytes),
    });
    at += 46 + nameBytes + directory.readUInt16LE(at + 30) + directory.readUInt16LE(at + 32);
  }
  return entries;
}

/** The local header repeats the name with an extra field of its own length, so it must be read too. */
async function contentStart(file: FileHandle, entry: Entry, zipPath: string): Promise<number> {
  const header = await readAt(file, entry.headerAt, 30);
  if (header.readUInt32LE(0) !== LOCAL_HEADER) throw new Error(`${zipPath} is damaged at ${entry.name}`);
  return entry.headerAt + 30 + header.readUInt16LE(26) + header.readUInt16LE(28);
}

async function readAt(file: FileHandle, position: number, length: number): Promise<Buffer> {
  const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, position);
  return buffer.subarray(0, bytesRead);
}
