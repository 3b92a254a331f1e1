import type { Readable, Writable } from 'node:stream';
import { createColors } from 'picocolors';

/** The world of one invocation, handed in: the entry point takes the process's, tests their own. */
export interface Io {
  readonly stdin: Readable & { readonly isTTY?: boolean };
  readonly stdout: Writable & { readonly isTTY?: boolean; readonly columns?: number };
  readonly stderr: Writable & { readonly isTTY?: boolean };
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Aborted by Ctrl-C. */
  readonly interrupted: AbortSignal;
}

type Colors = ReturnType<typeof createColors>;

/** Colours where a person reads: never in a pipe, never against NO_COLOR. */
export function colorsOf(io: Io, stream: 'stdout' | 'stderr'): Colors {
  return createColors(io[stream].isTTY === true && (io.env['NO_COLOR'] ?? '') === '');
}

/** Whether somebody can be asked: both what they type and what they see are a terminal. */
export function canAsk(io: Io): boolean {
  return io.stdin.isTTY === true && io.stderr.isTTY === true;
}

/**
 * Text of a model, a tool or a person as a terminal may show it: whatever would move the cursor, change colours or turn the
 * direction of writing is shown as a code.
 */
export function printable(text: string): string {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/** Writes and waits until it is taken, so that a slow reader of a pipe holds no memory here. */
export async function writeTo(stream: Writable, text: string | Uint8Array): Promise<void> {
  if (stream.destroyed || stream.write(text)) return;
  await new Promise<void>((resolve) => {
    const go = (): void => {
      stream.off('drain', go).off('close', go).off('error', go);
      resolve();
    };
    stream.on('drain', go).on('close', go).on('error', go);
  });
}
