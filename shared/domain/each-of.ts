/**
 * Does `work` with each of `items` in turn; one that fails keeps no other from its turn.
 *
 * @throws the first failure, once all had their turn
 */
export async function eachOf<Item>(
  items: readonly Item[],
  work: (item: Item) => Promise<void>,
): Promise<void> {
  const failures: unknown[] = [];
  for (const item of items) {
    try {
      await work(item);
    } catch (error) {
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0];
}
