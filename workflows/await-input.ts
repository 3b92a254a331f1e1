import type { Run } from './run.js';

/**
 * Waits until nobody is waited for any more, holding no worker; an answer that came before the wait ends it at once.
 * What became of it is the ledger's to say, when the call is taken up again.
 */
export async function awaitInput(
  run: Run,
  reason: 'input_needed' | 'budget_needed' = 'input_needed',
): Promise<void> {
  let view = await run.obey();
  if (view.openInputs === 0) return;
  run.move('ask_input', reason);
  while (view.openInputs > 0) {
    if (run.isLarge) await run.continueAsNew();
    view = await run.waitForNews(view.nextInputExpiryMs);
  }
  run.move('input_received', view.inputExpired ? 'input_expired' : 'input_received');
}
