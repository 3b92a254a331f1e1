import fc from 'fast-check';
import { beforeAll, expect, test } from 'vitest';
import { EFFECT_CLASSES, type EffectClass, type EffectOutcome } from '../shared/domain/effect-classes.js';
import { isSettled } from '../shared/domain/effect-machine.js';
import type { ClaimedEffect } from '../shared/ledger/effects.js';
import { newId } from '../shared/ledger/new-id.js';
import { refusalOf } from '../shared/ledger/refusals.js';
import { closeOrphan } from '../shared/ledger/sweep.js';
import type { LedgerCall } from './support/ledger-call.js';
import type { AttemptRow, EffectRow, ReceiptRow } from './support/ledger-view.js';
import type { LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: whatever several workers, owners and looks do to one call, in whatever order and beside each other, the ledger
// never contradicts the world. Method: a target that is told the truth decides for every dispatch whether it applies;
// workers report what they can know of it, in time, late, twice or never; after every step the ledger is compared with
// what the target did and with the rules of the class.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

/** What happens next. `who` and `pick` choose among what there is, modulo its number. */
type Happening =
  | { readonly kind: 'claim'; readonly who: number; readonly redo: number; readonly applies: boolean }
  | { readonly kind: 'claim_again'; readonly pick: number }
  | { readonly kind: 'report'; readonly pick: number; readonly how: number }
  | { readonly kind: 'examine' | 'begin_query' | 'take_over' | 'close_orphan'; readonly who: number }
  | { readonly kind: 'answer_query'; readonly pick: number; readonly isClear: boolean }
  | { readonly kind: 'close'; readonly state: 'denied' | 'withdrawn' }
  | { readonly kind: 'time'; readonly seconds: number };

const small = fc.nat({ max: 5 });
const who = fc.oneof({ weight: 5, arbitrary: fc.constant(0) }, { weight: 1, arbitrary: small });
const of = <K extends Happening['kind']>(kind: K, rest: Record<string, fc.Arbitrary<unknown>>) =>
  fc.record({ kind: fc.constant(kind), ...rest });
const happening = fc.oneof(
  { weight: 30, arbitrary: of('claim', { who, redo: fc.nat({ max: 2 }), applies: fc.boolean() }) },
  { weight: 5, arbitrary: of('claim_again', { pick: small }) },
  { weight: 30, arbitrary: of('report', { pick: small, how: small }) },
  { weight: 15, arbitrary: of('examine', { who }) },
  { weight: 15, arbitrary: of('begin_query', { who }) },
  { weight: 15, arbitrary: of('answer_query', { pick: small, isClear: fc.boolean() }) },
  { weight: 5, arbitrary: of('take_over', { who }) },
  { weight: 5, arbitrary: of('close', { state: fc.constantFrom('denied', 'withdrawn') }) },
  { weight: 5, arbitrary: of('time', { seconds: fc.constantFrom(61, 3_601) }) },
  { weight: 1, arbitrary: of('close_orphan', { who }) },
) as fc.Arbitrary<Happening>;
/** What stands in one batch happens at once. */
const history = fc.array(fc.array(happening, { minLength: 1, maxLength: 3 }), {
  minLength: 4,
  maxLength: 24,
});

interface Dispatch {
  readonly claim: ClaimedEffect;
  readonly execution: string;
  readonly applies: boolean;
  /** What its worker found out, once and for all. */
  report?: EffectOutcome;
}

/** One call, everybody who works on it, and the target that knows what really happened. */
class Play {
  readonly #owners: LedgerRun[];
  readonly #dispatches: Dispatch[] = [];
  readonly #questions: {
    readonly question: Parameters<LedgerCall['record']>[0];
    readonly execution: string;
  }[] = [];

  constructor(run: LedgerRun) {
    this.#owners = [run];
  }

  get runId(): string {
    return this.#owners[0]!.runId;
  }

  /** The execution that owns the run for `who` 0, else one that did before. */
  #by(index: number): LedgerCall {
    return this.#owners[index % this.#owners.length]!.call(0, 1);
  }

  /** Whether the target applied this very effect, under its key. */
  applied(effectId: string): boolean {
    return this.#dispatches.some(({ claim, applies }) => claim.effectId === effectId && applies);
  }

  granted(): readonly Dispatch[] {
    return this.#dispatches;
  }

  /** A refusal is fine; anything else that goes wrong is not. */
  async happen(event: Happening): Promise<void> {
    try {
      await this.#happen(event);
    } catch (error) {
      if (refusalOf(error) === undefined) throw error;
    }
  }

  async #happen(event: Happening): Promise<void> {
    switch (event.kind) {
      case 'claim': {
        const by = this.#by(event.who);
        const claim = await by.claim({ redo: event.redo });
        if (claim.kind === 'claimed') {
          this.#dispatches.push({ claim, execution: by.run.execution, applies: event.applies });
        }
        return;
      }
      case 'claim_again': {
        const known = this.#pick(this.#dispatches, event.pick);
        if (known === undefined) return;
        const claim = await this.#by(0).claim({ attemptId: known.claim.attemptId });
        if (claim.kind === 'claimed') expect(claim).toStrictEqual(known.claim);
        return;
      }
      case 'report':
        return await this.#report(event.pick, event.how);
      case 'examine':
        return void (await this.#by(event.who).examine());
      case 'begin_query': {
        const by = this.#by(event.who);
        const question = await by.beginQuery();
        if (question.kind === 'query') this.#questions.push({ question, execution: by.run.execution });
        return;
      }
      case 'answer_query': {
        const asked = this.#pick(this.#questions, event.pick);
        if (asked === undefined) return;
        const truth = this.applied(asked.question.effectId) ? 'found' : 'absent';
        await this.#by(0).record(asked.question, event.isClear ? truth : 'inconclusive', {}, asked.execution);
        return;
      }
      case 'take_over':
        return void this.#owners.unshift(await this.#owners[0]!.takenOver());
      case 'close':
        return void (await this.#by(0).close(event.state, 'retries_exhausted'));
      case 'close_orphan': {
        const { epoch } = await ledger.runRow(this.runId);
        return void (await closeOrphan(ledger.db, this.runId, epoch, 'workflow_terminated'));
      }
      case 'time':
        if ((await ledger.effects(this.runId)).length > 0) await this.#by(0).age(event.seconds);
    }
  }

  /** A worker says what it can know: of what was applied never that it was not, and of nothing that it was. */
  async #report(pick: number, how: number): Promise<void> {
    const dispatch = this.#pick(this.#dispatches, pick);
    if (dispatch === undefined) return;
    const { claim, execution, applies } = dispatch;
    const nothing: EffectOutcome[] = ['rejected', 'not_sent', 'throttled'];
    // A target that knows the key answers a second request with what the first one did; or refuses before it looks.
    if (claim.effectClass === 'keyed' && this.applied(claim.effectId)) nothing.push('succeeded');
    const possible: EffectOutcome[] = [
      'unknown',
      'in_progress',
      ...(applies ? ['succeeded' as const] : nothing),
    ];
    dispatch.report ??= possible[(how * 7 + pick) % possible.length]!;
    await this.#by(0).settle(claim, dispatch.report, {}, execution);
  }

  #pick<T>(list: readonly T[], index: number): T | undefined {
    return list.length === 0 ? undefined : list[list.length - 1 - (index % list.length)];
  }
}

interface Rows {
  readonly effects: readonly EffectRow[];
  readonly attempts: readonly (AttemptRow & { readonly fencing_token: number })[];
  readonly receipts: readonly ReceiptRow[];
}
const rowsOf = async (runId: string): Promise<Rows> => {
  const [effects, attempts, receipts] = await Promise.all([
    ledger.effects(runId),
    ledger.attempts(runId),
    ledger.receipts(runId),
  ]);
  return { effects, attempts: attempts as unknown as Rows['attempts'], receipts };
};

/** What holds at every moment. */
function judge(play: Play, effectClass: EffectClass, rows: Rows, before: Rows): void {
  for (const effect of rows.effects) {
    const attempts = rows.attempts.filter(({ effect_id }) => effect_id === effect.effect_id);
    const open = attempts.filter(({ outcome }) => outcome === null);
    const receipts = rows.receipts.filter(({ effect_id }) => effect_id === effect.effect_id);
    const applied = play.applied(effect.effect_id);
    const where = `${effect.redo} ${effect.state}`;

    // The ledger never contradicts the world.
    if (effect.state === 'succeeded' || effect.state === 'committed')
      expect([where, applied]).toStrictEqual([where, true]);
    if (
      isSettled(effect.state) &&
      effect.state !== 'succeeded' &&
      effect.state !== 'committed' &&
      effectClass !== 'read'
    ) {
      expect([where, applied]).toStrictEqual([where, false]);
    }
    if (effect.state === 'intended' && effectClass !== 'read')
      expect([where, applied]).toStrictEqual([where, false]);

    // One dispatch at a time, and another one only where the class lets it.
    expect([where, open.length]).toStrictEqual([where, effect.state === 'dispatching' ? 1 : 0]);
    const didNothing = attempts
      .slice(0, -1)
      .every(({ outcome }) => outcome === 'not_sent' || outcome === 'throttled');
    if (effectClass === 'opaque' || effectClass === 'queryable')
      expect([where, didNothing]).toStrictEqual([where, true]);
    expect(new Set(attempts.map(({ fencing_token }) => fencing_token)).size).toBe(attempts.length);

    // One receipt at most, and the state says the same as it.
    expect(receipts.length).toBeLessThanOrEqual(1);
    for (const { status } of receipts) expect([where, status]).toStrictEqual([where, effect.state]);
    if (effect.redo > 0) {
      expect(rows.effects.find(({ effect_id }) => effect_id === effect.supersedes)?.state).toBe(
        'not_committed',
      );
    }
  }
  // Every attempt was a permission that somebody got, once.
  expect(rows.attempts.map(({ attempt_id }) => attempt_id).toSorted()).toStrictEqual(
    play
      .granted()
      .map(({ claim }) => claim.attemptId)
      .toSorted(),
  );
  // What was settled stays, and so does every receipt.
  for (const old of before.effects) {
    const now = rows.effects.find(({ effect_id }) => effect_id === old.effect_id);
    if (isSettled(old.state)) expect(now?.state).toBe(old.state);
  }
  expect(rows.receipts.slice(0, before.receipts.length)).toStrictEqual(before.receipts);
}

test.each(EFFECT_CLASSES)(
  'the ledger of a %s call never contradicts the world',
  { timeout: 60_000 },
  async (effectClass) => {
    const policy = {
      query: { settlingSeconds: 60, equalAnswers: 2, queriesMax: 20 },
      keyed: { resendsMax: 4 },
    };
    const withQuery = effectClass === 'keyed' || effectClass === 'queryable';
    await fc.assert(
      fc.asyncProperty(history, async (batches) => {
        const call = await ledger.newCall(effectClass, { policy: withQuery ? policy : {} });
        const play = new Play(call.run);
        let before = await rowsOf(play.runId);
        for (const batch of batches) {
          await Promise.all(batch.map((event) => play.happen(event)));
          const rows = await rowsOf(play.runId);
          judge(play, effectClass, rows, before);
          before = rows;
        }
      }),
      { numRuns: 30, interruptAfterTimeLimit: 4_000 },
    );
  },
);

test('an attempt id that was never granted settles nothing', async () => {
  const call = await ledger.newCall('keyed');
  const claim = await call.claimed();
  const forged = { attemptId: newId('att'), fencingToken: claim.fencingToken };
  expect(await call.settle(forged, 'succeeded').catch(refusalOf)).toBe('effect_not_found');
  expect(await call.state()).toBe('dispatching');
});
