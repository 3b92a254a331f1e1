import type { Writable } from 'node:stream';
import type { Io } from './io.js';

/** Something that goes on and is shown while it does. */
export interface Progress {
  say(text: string): void;
  stop(): void;
}

const QUIET: Progress = { say: () => undefined, stop: () => undefined };

/** A spinner on a terminal; nothing at all in a pipe or a file. */
export function showProgress(io: Io, text: string): Progress {
  if (io.stderr.isTTY !== true) return QUIET;
  let stopped = false;
  let latest = text;
  const spinner = import('yocto-spinner').then(({ default: create }) => {
    const stream = io.stderr as Writable as NodeJS.WriteStream;
    return stopped ? null : create({ text: latest, stream, color: 'cyan' }).start();
  });
  return {
    say: (next) => {
      latest = next;
      void spinner.then((shown) => {
        if (shown !== null && !stopped) shown.text = next;
      });
    },
    stop: () => {
      stopped = true;
      void spinner.then((shown) => shown?.stop());
    },
  };
}
