import { Context } from '@temporalio/activity';
import { FAULT_POINTS, type FaultPoint, type ReachFaultPoint } from '../../activities/fault-points.js';

/**
 * `throw`: the activity ends there. `kill`: its process is killed with -9. `stop`: its process is frozen (SIGSTOP) until
 * somebody sends SIGCONT. `hang`: the activity waits there, heartbeats going on, until `release`.
 */
export const FAULT_MODES = ['throw', 'kill', 'stop', 'hang'] as const;
export type FaultMode = (typeof FAULT_MODES)[number];

/** One cut of one attempt. */
export interface Fault {
  readonly point: FaultPoint;
  readonly mode: FaultMode;
  /** Only activities of this run; of any run by default. */
  readonly runId?: string;
  /** The n-th time that the point is reached, from 1; the first by default. */
  readonly hit?: number;
}

/** That a fault came about. */
export interface ReachedFault {
  readonly kind: 'fault';
  readonly point: FaultPoint;
  readonly mode: FaultMode;
  readonly runId: string;
}

/** Faults that are still to come, for the activities of one process; each comes about once. */
export class FaultPlan {
  readonly #faults: (Fault & { seen: number })[] = [];
  readonly #reached: ReachedFault[] = [];
  readonly #hanging = new Map<() => void, string>();
  readonly #tell: (reached: ReachedFault) => Promise<void>;

  /** @param tell hears of each fault before it takes effect */
  constructor(faults: readonly Fault[] = [], tell: (reached: ReachedFault) => Promise<void> = noTelling) {
    this.#tell = tell;
    for (const fault of faults) this.add(fault);
  }

  add(fault: Fault): void {
    if (!FAULT_POINTS.includes(fault.point)) throw new Error(`there is no fault point ${fault.point}`);
    this.#faults.push({ ...fault, seen: 0 });
  }

  /** The faults that came about so far, oldest first. */
  reached(): readonly ReachedFault[] {
    return this.#reached;
  }

  /** Lets activities that hang go on: those of one run, or all. */
  release(runId?: string): void {
    for (const [go, run] of this.#hanging) {
      if (runId !== undefined && run !== runId) continue;
      this.#hanging.delete(go);
      go();
    }
  }

  /** To be handed to a worker. */
  readonly reach: ReachFaultPoint = async (point) => {
    const runId = Context.current().info.workflowExecution?.workflowId ?? '';
    const fault = this.#due(point, runId);
    if (fault === undefined) return;
    const reached: ReachedFault = { kind: 'fault', point, mode: fault.mode, runId };
    this.#reached.push(reached);
    await this.#tell(reached);
    switch (fault.mode) {
      case 'throw':
        throw new Error(`cut off at ${point}`);
      case 'kill':
        process.kill(process.pid, 'SIGKILL');
        break;
      case 'stop':
        process.kill(process.pid, 'SIGSTOP');
        break;
      case 'hang':
        await new Promise<void>((go) => this.#hanging.set(go, runId));
        break;
    }
  };

  #due(point: FaultPoint, runId: string): Fault | undefined {
    const matching = this.#faults.filter(
      (fault) => fault.point === point && (fault.runId === undefined || fault.runId === runId),
    );
    for (const fault of matching) fault.seen += 1;
    return matching.find((fault) => fault.seen === (fault.hit ?? 1));
  }
}

const noTelling = (): Promise<void> => Promise.resolve();
