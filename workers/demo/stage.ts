import type { ApiClient } from './api-client.js';
import type { ProviderLine } from './provider-log.js';
import type { DemoRun } from './runs.js';

/** What the play acts on: a running Holdfast and a payment provider, with a worker that can be killed. */
export interface Stage {
  readonly api: ApiClient;
  /** Kills the worker with -9; returns when it is gone, with its pid. */
  killWorker(): Promise<number>;
  /** Starts a worker again; returns when it takes work, with its pid. */
  startWorker(): Promise<number>;
  /** Turns a dial of the provider. */
  turnDial(body: object): Promise<void>;
  providerLog(): Promise<ProviderLine[]>;
  /** Throws when a process that should live has ended, with its last words. */
  checkAlive(): void;
}

/** What whoever plays a part is given. */
export interface Direction {
  readonly stage: Stage;
  readonly signal: AbortSignal;
  say(line: string): void;
}

/** A run of the demo that was admitted. */
export interface StartedRun {
  readonly run: DemoRun;
  readonly runId: string;
}
