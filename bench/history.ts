import type { Client } from '@temporalio/client';

/** What Temporal keeps of one run, all its executions together. */
export interface HistoryCost {
  readonly bytes: number;
  readonly events: number;
  readonly executions: number;
}

/** Follows the run from its newest execution back to its first: each says from which one it continued. */
export async function historyCost(client: Client, workflowId: string): Promise<HistoryCost> {
  let cost: HistoryCost = { bytes: 0, events: 0, executions: 0 };
  let runId: string | undefined;
  do {
    const described = await client.workflow.getHandle(workflowId, runId).describe();
    const { historySize, historyLength } = described;
    cost = {
      bytes: cost.bytes + (historySize ?? 0),
      events: cost.events + historyLength,
      executions: cost.executions + 1,
    };
    runId = await continuedFrom(client, workflowId, described.runId);
  } while (runId !== undefined);
  return cost;
}

async function continuedFrom(client: Client, workflowId: string, runId: string): Promise<string | undefined> {
  const { history } = await client.workflowService.getWorkflowExecutionHistory({
    namespace: client.options.namespace,
    execution: { workflowId, runId },
    maximumPageSize: 1,
  });
  return history?.events?.[0]?.workflowExecutionStartedEventAttributes?.continuedExecutionRunId || undefined;
}

/** Size of the largest payload in the newest execution's history: an input, a result, a memo or an attribute. */
export async function largestPayload(client: Client, workflowId: string): Promise<number> {
  const { events } = await client.workflow.getHandle(workflowId).fetchHistory();
  let largest = 0;
  const look = (value: unknown): void => {
    if (typeof value !== 'object' || value === null) return;
    if (isPayload(value)) largest = Math.max(largest, value.data.byteLength);
    else for (const inner of Object.values(value)) look(inner);
  };
  events?.forEach(look);
  return largest;
}

function isPayload(value: object): value is { readonly data: Uint8Array } {
  return 'data' in value && value.data instanceof Uint8Array && 'metadata' in value;
}
