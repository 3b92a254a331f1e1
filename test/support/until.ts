/** Waits until `look` gives something else than undefined or false. Fails with `what` when it has not in time. */
export async function until<T>(
  what: string,
  look: () => T | Promise<T>,
  deadlineMs = 25_000,
): Promise<Exclude<T, undefined | false>> {
  const deadline = performance.now() + deadlineMs;
  for (;;) {
    const found = await look();
    if (found !== undefined && found !== false) return found as Exclude<T, undefined | false>;
    if (performance.now() > deadline) throw new Error(`not within ${deadlineMs} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}
