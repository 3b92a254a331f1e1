/**
 * The one form in which actors are stored and compared, or null for a text that names nobody: Unicode compatibility
 * forms folded (NFKC), trimmed, in lower case. Whoever is spelt differently and looks the same is the same person, or
 * nobody: what is not printable ASCII then is refused. `holdfast.canonical_actor` is the same rule in the ledger.
 */
export function canonicalActor(text: string): string | null {
  const actor = comparableActor(text);
  return /^[ -~]{1,200}$/.test(actor) ? actor : null;
}

/** The form in which `text` is compared, whether it names somebody or not: what the digest of a request says of its actor. */
export function comparableActor(text: string): string {
  return text.normalize('NFKC').trim().toLowerCase();
}
