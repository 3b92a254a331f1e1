import { hostname } from 'node:os';
import type { Client } from '@temporalio/client';
import { type NativeConnection, Worker, type WorkerOptions } from '@temporalio/worker';
import type { Pool } from 'pg';
import { WorkflowNotFoundError } from '@temporalio/client';
import { createModelClient } from '../activities/models/create-model-client.js';
import { type ReachFaultPoint } from '../activities/fault-points.js';
import { createActivities } from '../activities/index.js';
import type { ToolCatalogue } from '../activities/tools/catalogue.js';
import type { ModelProfile } from '../shared/domain/agents.js';
import type { ModelClient } from '../shared/domain/models.js';
import type { Announcer } from '../shared/ledger/announcer.js';
import type { Logger } from '../shared/process/log.js';

/** Activities that one worker runs at once. */
const ACTIVITIES_MAX = 100;
/** Workflow tasks that one worker holds at once: a run in the fast lane holds one while it works. */
const WORKFLOW_TASKS_MAX = 100;
/** More than workflow tasks, so that a short commit never waits for long calls of the fast lane. */
const LOCAL_ACTIVITIES_MAX = 200;
/** How long a worker that is asked to stop lets effects in flight finish, in milliseconds. */
const SHUTDOWN_GRACE_MS = 60_000;

export interface RunWorkerDeps {
  readonly connection: NativeConnection;
  readonly client: Client;
  readonly namespace: string;
  readonly taskQueue: string;
  readonly db: Pool;
  readonly catalogue: ToolCatalogue;
  readonly secrets: (name: string) => string | undefined;
  /** Where scripts of scripted models are found. */
  readonly projectDir: string;
  readonly workflowBundle: { readonly code: string };
  readonly announcer: Announcer;
  readonly reach: ReachFaultPoint;
  readonly log: Logger;
  /** In place of what a profile leads to: a replay answers from a record. */
  readonly modelClient?: (profile: ModelProfile) => ModelClient;
  /** For tests: a small cache, say. */
  readonly options?: Partial<WorkerOptions>;
}

/** The Temporal worker of a process: workflow code from the bundle, activities over the given parts. */
export function createRunWorker(deps: RunWorkerDeps): Promise<Worker> {
  return Worker.create({
    connection: deps.connection,
    namespace: deps.namespace,
    taskQueue: deps.taskQueue,
    workflowBundle: deps.workflowBundle,
    activities: createActivities({
      db: deps.db,
      catalogue: deps.catalogue,
      secrets: deps.secrets,
      modelClient: deps.modelClient ?? createModelClients(deps),
      isOpenExecution: (runId, execution) => isOpenExecution(deps.client, runId, execution),
      announcer: deps.announcer,
      reach: deps.reach,
      workerName: `${hostname()}:${process.pid}`,
      log: deps.log,
    }),
    maxConcurrentActivityTaskExecutions: ACTIVITIES_MAX,
    maxConcurrentWorkflowTaskExecutions: WORKFLOW_TASKS_MAX,
    maxConcurrentLocalActivityExecutions: LOCAL_ACTIVITIES_MAX,
    shutdownGraceTime: SHUTDOWN_GRACE_MS,
    // How long a run waits for the worker that held it before another may take it: most of a recovery's time.
    stickyQueueScheduleToStartTimeout: '3 seconds',
    // A throttled heartbeat is sent at most this often; the shortest heartbeat time-out in use is one second.
    maxHeartbeatThrottleInterval: '5 seconds',
    ...deps.options,
  });
}

/** A client for each profile, made once. */
function createModelClients({ secrets, projectDir }: RunWorkerDeps): (profile: ModelProfile) => ModelClient {
  const clients = new Map<string, ModelClient>();
  return (profile) => {
    const key = JSON.stringify(profile);
    let client = clients.get(key);
    if (client === undefined) {
      client = createModelClient(profile, { secrets, projectDir });
      clients.set(key, client);
    }
    return client;
  };
}

/** Whether Temporal says that `execution` is the open execution of this workflow id. */
async function isOpenExecution(client: Client, runId: string, execution: string): Promise<boolean> {
  try {
    const open = await client.workflow.getHandle(runId).describe();
    return open.runId === execution && open.status.name === 'RUNNING';
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return false;
    throw error;
  }
}
