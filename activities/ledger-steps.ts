import type { LedgerActivities } from '../shared/domain/protocol.js';
import { isTerminal } from '../shared/domain/run-machine.js';
import { startChild } from '../shared/ledger/children.js';
import { lookAtRun } from '../shared/ledger/commands.js';
import { closeEffect, examineEffect } from '../shared/ledger/effects.js';
import { askQuestion } from '../shared/ledger/questions.js';
import { refusalOf } from '../shared/ledger/refusals.js';
import { commitTrail, readResumePoint, takeOver } from '../shared/ledger/trail.js';
import type { ActivityDeps } from './deps.js';
import { createClaimResume } from './claim-resume.js';
import { createNextUndo } from './next-undo.js';
import { inScope, orRefused } from './scope.js';

/** Steps that touch the ledger only. Each may be repeated; the workflow waits for Postgres as long as it takes. */
export function createLedgerSteps(deps: ActivityDeps): LedgerActivities {
  return {
    commitTrail: (input) =>
      inScope('commitTrail', input.runId, deps, (scope) =>
        orRefused(async () => ({ kind: 'committed', ...(await commitTrail(deps.db, scope, input.trail)) })),
      ),

    examineEffect: (input) =>
      inScope('examineEffect', input.runId, deps, (scope) =>
        orRefused(() => examineEffect(deps.db, scope, input, input.trail)),
      ),

    closeEffect: (input) =>
      inScope('closeEffect', input.runId, deps, (scope) =>
        orRefused(() => closeEffect(deps.db, scope, input, input)),
      ),

    askQuestion: (input) =>
      inScope('askQuestion', input.runId, deps, (scope) =>
        orRefused(() => askQuestion(deps.db, scope, input, input.trail)),
      ),

    startChild: (input) =>
      inScope('startChild', input.runId, deps, async (scope) => {
        await deps.reach('child.before_start');
        const answer = await orRefused(() => startChild(deps.db, scope, input, input.trail));
        await deps.reach('child.after_start');
        return answer;
      }),

    look: (input) =>
      inScope(
        'look',
        input.runId,
        deps,
        (scope) => orRefused(() => lookAtRun(deps.db, scope, input.position)),
        { reads: true },
      ),

    nextUndo: createNextUndo(deps),

    claimResume: createClaimResume(deps),

    takeOver: (input) =>
      inScope('takeOver', input.runId, deps, async (scope) => {
        for (;;) {
          const point = await readResumePoint(deps.db, scope);
          const { epoch, owner, known, ...resume } = point;
          if (owner === scope.execution || isTerminal(point.state)) return resume;
          // An execution that owned the run once lost it for good; one that Temporal has closed never gets it.
          if (known || !(await deps.isOpenExecution(input.runId, scope.execution))) {
            return { kind: 'lost_ownership' };
          }
          try {
            await takeOver(deps.db, scope, epoch, input.continued ? 'continued' : 'reset');
          } catch (error) {
            // Somebody raised the epoch between the look and the swap, or the run ended: look again.
            const refusal = refusalOf(error);
            if (refusal !== 'lost_takeover' && refusal !== 'run_ended') throw error;
          }
        }
      }),
  };
}
