import type { ModelChunk } from '../shared/domain/models.js';
import type { StoredChunk } from '../shared/ledger/model-calls.js';

/** How long pieces are gathered before they are stored: a reader sees text as it comes, Postgres sees few commits. */
const GATHER_MS = 250;
/** Characters that are stored without waiting for the time. */
const GATHER_CHARACTERS = 4_000;

/**
 * Stores a streaming answer while it comes: neighbours of one type are joined, and one write is under way at a time.
 * A write that fails is dropped: whether it was stored is not known, and the whole message follows with the response.
 */
export class ChunkWriter {
  readonly #store: (chunks: readonly StoredChunk[]) => Promise<boolean>;
  readonly #onLost: () => void;
  readonly #onError: (error: unknown) => void;
  #gathered: { type: StoredChunk['type']; text: string }[] = [];
  #characters = 0;
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> = Promise.resolve();
  #closed = false;

  /** `store` answers false when the attempt lost the call; `onLost` then hears of it. */
  constructor(options: {
    readonly store: (chunks: readonly StoredChunk[]) => Promise<boolean>;
    readonly onLost: () => void;
    readonly onError: (error: unknown) => void;
  }) {
    this.#store = options.store;
    this.#onLost = options.onLost;
    this.#onError = options.onError;
  }

  push(chunk: ModelChunk): void {
    if (this.#closed || chunk.text === '') return;
    const last = this.#gathered.at(-1);
    if (last?.type === chunk.type) last.text += chunk.text;
    else this.#gathered.push({ ...chunk });
    this.#characters += chunk.text.length;
    if (this.#characters >= GATHER_CHARACTERS) this.#write();
    else this.#timer ??= setTimeout(() => this.#write(), GATHER_MS);
  }

  /** Ends the gathering. @returns what is not stored yet, for the commit of the response */
  async close(): Promise<readonly StoredChunk[]> {
    this.#closed = true;
    clearTimeout(this.#timer);
    await this.#writing;
    return this.#gathered;
  }

  #write(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#writing = this.#writing.then(() => this.#writeGathered());
  }

  async #writeGathered(): Promise<void> {
    const chunks = this.#gathered;
    if (chunks.length === 0) return;
    this.#gathered = [];
    this.#characters = 0;
    try {
      if (!(await this.#store(chunks))) this.#onLost();
    } catch (error) {
      // A piece shown twice is worse than a piece shown late.
      this.#onError(error);
    }
  }
}
