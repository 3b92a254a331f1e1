import type { AskAnswer } from '../shared/domain/protocol.js';
import { ledger } from './activities.js';
import { RunFails } from './endings.js';
import { meetLimit } from './meet-limit.js';
import { awaitInput } from './await-input.js';
import type { Run } from './run.js';

/**
 * Until a question's call has its one result: an answer, or the word that there is none. Nothing is dispatched for it.
 * `showOthers` opens the waits of calls further on, so that a person sees everything of the step at once.
 *
 * @throws RunFails when nobody answered and the question's own rule ends the run over it
 */
export async function settleQuestion(run: Run, slot: number, showOthers: () => Promise<void>): Promise<void> {
  for (;;) {
    run.heedAbort();
    if (run.isLarge) await run.continueAsNew();
    const answer = await ask(run, slot);
    switch (answer.kind) {
      case 'settled':
        return;
      case 'unanswered':
        throw new RunFails('input_expired');
      case 'open':
        await showOthers();
        await awaitInput(run);
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

/** Opens the wait of a question, or takes up what became of it. */
export async function ask(run: Run, slot: number): Promise<AskAnswer> {
  return await run.trail.ride<AskAnswer>((trail) =>
    ledger.askQuestion({ runId: run.id, turn: run.turn, step: run.step, slot, trail }),
  );
}
