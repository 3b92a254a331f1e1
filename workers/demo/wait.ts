/**
 * Looks again and again until `look` gives something other than undefined.
 *
 * @param what ends the sentence "The demo waited … for", when it does not come
 * @throws Error when it has not come within `withinMs`, or when `signal` aborts
 */
export async function waitFor<T>(
  what: string,
  { withinMs, everyMs = 100, signal }: { withinMs: number; everyMs?: number; signal: AbortSignal },
  look: () => Promise<T | undefined>,
): Promise<T> {
  const deadline = performance.now() + withinMs;
  for (;;) {
    signal.throwIfAborted();
    const found = await look();
    if (found !== undefined) return found;
    if (performance.now() > deadline) {
      throw new Error(`The demo waited ${Math.round(withinMs / 1000)} s for ${what}, in vain.`);
    }
    await new Promise((resolve) => setTimeout(resolve, everyMs));
  }
}
