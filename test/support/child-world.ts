import type { RunState } from '../../shared/domain/run-machine.js';
import { until, type World } from './world.js';

export interface ChildRow {
  readonly child_run_id: string;
  readonly parent_run_id: string;
  readonly root_run_id: string;
  readonly depth: number;
  readonly step: number;
  readonly slot: number;
  readonly on_cancel: string;
  readonly steps_granted: number;
  readonly tool_calls_granted: number;
  readonly state: RunState;
}

/** The run's children with their states, in call order. */
export async function childrenOf(world: Pick<World, 'rows'>, runId: string): Promise<ChildRow[]> {
  return await world.rows<ChildRow>(
    `select c.*, k.state from holdfast.child_runs c join holdfast.runs k on k.run_id = c.child_run_id
      where c.parent_run_id = $1 order by c.step, c.slot`,
    runId,
  );
}

/** Waits until so many children of the run are admitted, and starts them as the starter does. @returns their ids */
export async function untilDelegated(world: World, runId: string, count = 1): Promise<string[]> {
  await until('its children are admitted', async () => (await childrenOf(world, runId)).length === count);
  await world.starter.round();
  return (await childrenOf(world, runId)).map(({ child_run_id }) => child_run_id);
}
