import type { ChildAnswer } from '../shared/domain/protocol.js';
import { ledger } from './activities.js';
import { meetLimit } from './meet-limit.js';
import type { Run } from './run.js';

/**
 * Until the call of a delegate has its one result: what the child run said last, or how it ended. The run stays `running`
 * meanwhile, since no person and no time is waited for; it holds no worker, and the end of the child nudges it.
 *
 * @throws RunFails when the run ends over a limit before the child was started
 */
export async function settleChild(run: Run, slot: number): Promise<void> {
  for (;;) {
    run.heedAbort();
    if (run.isLarge) await run.continueAsNew();
    const answer = await startChild(run, slot);
    switch (answer.kind) {
      case 'settled':
        return;
      case 'open':
        await run.waitForNews(null);
        break;
      case 'control':
        await run.flush();
        await run.obey();
        break;
      case 'limit':
        await meetLimit(run, answer);
        break;
    }
  }
}

/** Starts the child of a call, once, or takes up what became of it. */
export async function startChild(run: Run, slot: number): Promise<ChildAnswer> {
  return await run.trail.ride<ChildAnswer>((trail) =>
    ledger.startChild({ runId: run.id, turn: run.turn, step: run.step, slot, trail }),
  );
}
