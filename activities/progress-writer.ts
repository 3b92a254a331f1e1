import type { ToolProgress } from './tools/tool.js';

/** A tool may say more than anybody reads: the newest word is written, at most this often. */
const PAUSE_MS = 1_000;

/**
 * Writes what a tool says of its call while it works: the first word at once, then the newest at most once a second, one
 * write at a time. A word that could not be written is dropped: it is worth nothing once the next one is there.
 */
export class ProgressWriter {
  readonly #write: (progress: ToolProgress) => Promise<boolean>;
  readonly #onError: (error: unknown) => void;
  #newest: ToolProgress | null = null;
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> | null = null;
  #closed = false;

  /** `write` answers false when the attempt is not heard any more. */
  constructor(options: {
    readonly write: (progress: ToolProgress) => Promise<boolean>;
    readonly onError: (error: unknown) => void;
  }) {
    this.#write = options.write;
    this.#onError = options.onError;
  }

  push(progress: ToolProgress): void {
    if (this.#closed) return;
    this.#newest = progress;
    if (this.#timer === undefined) this.#writeNewest();
  }

  /** Ends the telling; what is being written is waited for, so that nothing comes after the outcome. */
  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    await this.#writing;
  }

  #writeNewest(): void {
    const progress = this.#newest;
    this.#timer = undefined;
    if (progress === null || this.#closed) return;
    this.#newest = null;
    this.#timer = setTimeout(() => this.#writeNewest(), PAUSE_MS);
    const before = this.#writing ?? Promise.resolve();
    this.#writing = before.then(async () => {
      try {
        if (!(await this.#write(progress))) this.#closed = true;
      } catch (error) {
        this.#onError(error);
      }
    });
  }
}
