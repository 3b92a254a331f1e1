/** Waits until `look` says yes. Fails with `what` when it has not within `deadlineMs`. */
export async function until(
  what: string,
  look: () => boolean | Promise<boolean>,
  deadlineMs = 20_000,
): Promise<void> {
  const deadline = performance.now() + deadlineMs;
  while (!(await look())) {
    if (performance.now() > deadline) throw new Error(`not within ${deadlineMs} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
