/** One effect as GET /v1/runs/:id/effects gives it, with the run it belongs to. */
export interface LedgerEffect {
  readonly run_id: string;
  readonly effect_id: string;
  readonly tool: string;
  readonly state: string;
  readonly idempotency_key: string;
  /** The outside name of what was done: a refund id, a message id. */
  readonly reference: string | null;
  readonly reconciliation: { readonly owner: string; readonly deadline_at: string } | null;
}

/** One deed in the provider's own journal: a refund that moved money, a mail that left. */
export interface ProviderDeed {
  readonly kind: 'applied' | 'mail_sent';
  readonly key: string | null;
  readonly reference: string;
}

/**
 * What one line of the comparison says.
 *
 * `agrees`: done once, and the ledger says done. `not_done`: not done, and the ledger says so. `open`: the
 * ledger says it does not know, and names who settles it and by when. The other three break the promise.
 */
export type Verdict = 'agrees' | 'not_done' | 'open' | 'duplicate' | 'lost' | 'unexplained';

/** One effect, or one deed that no effect accounts for. */
export interface ComparedRow {
  readonly verdict: Verdict;
  readonly effect: LedgerEffect | null;
  /** How often the provider did it. */
  readonly timesDone: number;
  /** A short sentence for people. */
  readonly why: string;
}

/** The counts of a comparison; see `compare` for what each is. */
export interface Comparison {
  readonly effects: number;
  readonly applied: number;
  readonly open: number;
  readonly duplicates: number;
  readonly lost: number;
  readonly unexplained: number;
  readonly rows: readonly ComparedRow[];
}

/** States in which the ledger says that the effect happened. */
const DONE_STATES: readonly string[] = ['succeeded', 'committed'];
/** States in which the ledger says that it did not happen and never will. */
const UNDONE_STATES: readonly string[] = ['rejected', 'not_committed', 'denied', 'withdrawn', 'superseded'];

/**
 * Compares what the ledger says with what the provider did, key by key. Pure.
 *
 * - `effects`: effects that the ledger says happened (`succeeded` or `committed`).
 * - `applied`: deeds in the provider's journal.
 * - `open`: effects in `unknown` that have an owner and a deadline. They account for their deed, if there is
 *   one, without claiming it; so `applied` lies between `effects` and `effects + open` when all is well.
 * - `duplicates`: deeds beyond the first under one key.
 * - `lost`: effects that the ledger says happened and the provider never did.
 * - `unexplained`: deeds that no effect accounts for (no such key, or an effect said not to have happened),
 *   effects that the two sides name differently, and effects left without an answer and without an owner.
 *
 * @param effects those that go to this provider; others have no deed to be compared with
 */
export function compare(effects: readonly LedgerEffect[], deeds: readonly ProviderDeed[]): Comparison {
  const deedsByKey = new Map<string, ProviderDeed[]>();
  const unnamed: ProviderDeed[] = [];
  for (const deed of deeds) {
    if (deed.key === null) unnamed.push(deed);
    else deedsByKey.set(deed.key, [...(deedsByKey.get(deed.key) ?? []), deed]);
  }
  const rows: ComparedRow[] = [];
  for (const effect of effects) {
    const own = deedsByKey.get(effect.idempotency_key) ?? [];
    deedsByKey.delete(effect.idempotency_key);
    rows.push(judge(effect, own));
  }
  for (const deed of [...[...deedsByKey.values()].flat(), ...unnamed]) {
    const why = `the provider did ${deed.reference}, and no effect in the ledger has its key`;
    rows.push({ verdict: 'unexplained', effect: null, timesDone: 1, why });
  }
  const count = (verdict: Verdict): number => rows.filter((row) => row.verdict === verdict).length;
  return {
    effects: effects.filter((effect) => DONE_STATES.includes(effect.state)).length,
    applied: deeds.length,
    open: count('open'),
    duplicates: rows
      .filter((row) => row.effect !== null)
      .reduce((sum, row) => sum + Math.max(0, row.timesDone - 1), 0),
    lost: count('lost'),
    unexplained: count('unexplained'),
    rows,
  };
}

function judge(effect: LedgerEffect, deeds: readonly ProviderDeed[]): ComparedRow {
  const row = (verdict: Verdict, why: string): ComparedRow => ({
    verdict,
    effect,
    timesDone: deeds.length,
    why,
  });
  const [deed] = deeds;
  if (deeds.length > 1) return row('duplicate', `the provider did it ${deeds.length} times under one key`);
  if (DONE_STATES.includes(effect.state)) return judgeDone(effect, deed, row);
  if (UNDONE_STATES.includes(effect.state)) {
    if (deed === undefined) return row('not_done', `the ledger says ${effect.state}, and nothing was done`);
    return row('unexplained', `the ledger says ${effect.state}, but the provider did ${deed.reference}`);
  }
  if (effect.state === 'unknown' && effect.reconciliation !== null) {
    const { owner, deadline_at } = effect.reconciliation;
    return row('open', `nobody can know yet: ${owner} settles it by ${deadline_at}`);
  }
  return row('unexplained', `the ledger left it ${effect.state}, with nobody to settle it`);
}

function judgeDone(
  effect: LedgerEffect,
  deed: ProviderDeed | undefined,
  row: (verdict: Verdict, why: string) => ComparedRow,
): ComparedRow {
  if (deed === undefined)
    return row('lost', `the ledger says ${effect.state}, but the provider never did it`);
  if (effect.reference !== null && effect.reference !== deed.reference) {
    const why = `the ledger calls it ${effect.reference}, the provider ${deed.reference}`;
    return row('unexplained', why);
  }
  return row('agrees', `done once: ${deed.reference}`);
}
