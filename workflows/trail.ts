import type { CommitAnswer, Refused, Trail, TrailEntry } from '../shared/domain/protocol.js';
import { ledger } from './activities.js';
import { OutOfStep } from './endings.js';

/**
 * What the run decided and has not made durable yet. It rides along with the next ledger write; a wait or an end
 * flushes it (SPEC 4). Entries keep their position until a commit is acknowledged, so a repeated send is skipped
 * by the ledger.
 */
export class TrailBuffer {
  readonly #runId: string;
  #committed: number;
  #pending: TrailEntry[] = [];

  constructor(runId: string, committed: number) {
    this.#runId = runId;
    this.#committed = committed;
  }

  push(entry: TrailEntry): void {
    this.#pending.push(entry);
  }

  /** How many entries are known to be durable. */
  get committed(): number {
    return this.#committed;
  }

  /** Takes back the newest entry, which no commit has made durable. */
  takeBack(): void {
    this.#pending.pop();
  }

  get isEmpty(): boolean {
    return this.#pending.length === 0;
  }

  /**
   * Hands the trail to a call that commits it first. An answer that is no refusal means it is durable; a failure
   * leaves it here, and the next call sends it again.
   *
   * @throws OutOfStep when the ledger refuses it
   */
  async ride<A extends { readonly kind: string }>(
    send: (trail: Trail) => Promise<A | Refused>,
  ): Promise<Exclude<A, Refused>> {
    const entries = [...this.#pending];
    const answer = await send({ from: this.#committed + 1, entries });
    if (isRefused(answer)) throw new OutOfStep(answer.kind);
    this.#committed += entries.length;
    this.#pending = this.#pending.slice(entries.length);
    return answer as Exclude<A, Refused>;
  }

  /** Counts an entry that the ledger itself wrote in the run's name: the end that rode with a final answer. */
  countLedgerEntry(): void {
    this.#committed += 1;
  }

  async flush(): Promise<void> {
    if (this.isEmpty) return;
    await this.ride<Exclude<CommitAnswer, Refused>>((trail) =>
      ledger.commitTrail({ runId: this.#runId, trail }),
    );
  }
}

const REFUSED: ReadonlySet<string> = new Set<Refused['kind']>([
  'out_of_step',
  'lost_ownership',
  'run_ended',
  'must_compensate',
]);

function isRefused(answer: { readonly kind: string }): answer is Refused {
  return REFUSED.has(answer.kind);
}
