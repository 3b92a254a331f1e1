import type { Pool } from 'pg';
import type { ModelProfile } from '../shared/domain/agents.js';
import type { ModelClient } from '../shared/domain/models.js';
import type { Announcer } from '../shared/ledger/announcer.js';
import type { Logger } from '../shared/process/log.js';
import type { ReachFaultPoint } from './fault-points.js';
import type { ToolCatalogue } from './tools/catalogue.js';

/** Everything activities touch. Workers and tests build it; activities open nothing themselves. */
export interface ActivityDeps {
  readonly db: Pool;
  readonly catalogue: ToolCatalogue;
  /** The secret of that name; undefined where this process has none. */
  readonly secrets: (name: string) => string | undefined;
  /** The client of a profile; called again for every call, so it must be cheap after the first time. */
  readonly modelClient: (profile: ModelProfile) => ModelClient;
  /** Whether Temporal says that `execution` is the open execution of this workflow id. */
  readonly isOpenExecution: (runId: string, execution: string) => Promise<boolean>;
  readonly announcer: Announcer;
  readonly reach: ReachFaultPoint;
  /** Names this process in attempt rows, for example `host:pid`. */
  readonly workerName: string;
  readonly log: Logger;
}
