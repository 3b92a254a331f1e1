import type { Refused } from '../shared/domain/protocol.js';
import type { TransitionReason } from '../shared/domain/run-machine.js';

/** The ledger stands elsewhere than this execution: take over again and go on from where it stands. */
export class OutOfStep extends Error {
  readonly refusal: Refused['kind'];
  constructor(refusal: Refused['kind']) {
    super(`the ledger refused: ${refusal}`);
    this.refusal = refusal;
  }
}

/** A cancel is in force: nothing new begins, and the run winds down. */
export class CancelAsked extends Error {
  constructor() {
    super('a cancel is in force');
  }
}

/** The run comes to `failed` for a reason of the closed list. */
export class RunFails extends Error {
  readonly reason: TransitionReason;
  constructor(reason: TransitionReason) {
    super(`the run fails: ${reason}`);
    this.reason = reason;
  }
}
