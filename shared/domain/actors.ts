/**
 * The one form in which actors are stored and compared, or null for a text that names nobody: Unicode compatibility
 * forms folded (NFKC), trimmed, in lower case. Whoever is spelt differently and looks the same is the same person, or
 * nobody: what is not printable ASCII then is refused. `holdfast.canonical_actor` is the same rule in the ledger.
 */
export function canonicalActor(text: string): string | null {
  const actor = text.normalize('NFKC').trim().toLowerCase();
  return /^[ -~]{1,200}$/.test(actor) ? actor : null;
}
