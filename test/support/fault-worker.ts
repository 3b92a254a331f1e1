import { promisify } from 'node:util';
import { runMain } from '../../shared/process/exit.js';
import { runWorkerProcess } from '../../workers/worker-process.js';
import { type Fault, FaultPlan, type ReachedFault } from './fault-plan.js';

/**
 * The worker as production runs it, cut off where `FAULTS` (a JSON list of `Fault`) says. It tells its parent of each
 * fault before it comes about; the message `{ kind: 'release', runId? }` lets activities that hang go on.
 */
const plan = new FaultPlan(JSON.parse(process.env['FAULTS'] ?? '[]') as Fault[], tellParent);

process.on('message', (message: { readonly kind?: unknown; readonly runId?: string }) => {
  if (message.kind === 'release') plan.release(message.runId);
});

runMain('worker', () => runWorkerProcess({ env: process.env, reach: plan.reach }));

/** Resolves when the message is on its way: a process that kills or stops itself next must not take it along. */
async function tellParent(reached: ReachedFault): Promise<void> {
  if (!process.connected || process.send === undefined) return;
  const send: (message: ReachedFault, done: (error: Error | null) => void) => void = (message, done) =>
    process.send?.(message, undefined, undefined, done);
  await promisify(send)(reached);
}
