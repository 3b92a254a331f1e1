import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Client, Connection } from '@temporalio/client';
import { NativeConnection, Runtime } from '@temporalio/worker';
import { bundleWorkflows } from '../../workers/bundle-workflows.js';
import { temporalAddress } from './servers.js';

/** A way to a Temporal server: the shared dev server unless a test hands in another, a time-skipping one say. */
export interface WorldTemporal {
  readonly client: Client;
  readonly connection: NativeConnection;
  /** host:port, for worker processes. */
  readonly address: string;
  readonly namespace: string;
}

/** Workflow bundles by the digest of their sources: made once for all test files and their worker processes. */
export const BUNDLES_DIR = fileURLToPath(new URL('../../node_modules/.cache/holdfast-test', import.meta.url));

let bundle: ReturnType<typeof bundleWorkflows> | undefined;

export function sharedBundle(): ReturnType<typeof bundleWorkflows> {
  bundle ??= bundleWorkflows(join(BUNDLES_DIR, 'cache'));
  return bundle;
}

let shared: Promise<WorldTemporal> | undefined;

/** One connection for all worlds of a test file. */
export function sharedTemporal(): Promise<WorldTemporal> {
  shared ??= connectTemporal(temporalAddress());
  return shared;
}

let isRuntimeInstalled = false;

/** A way to the dev server at `address`, for worlds; whoever asks closes its two connections. */
export async function connectTemporal(address: string): Promise<WorldTemporal> {
  if (!isRuntimeInstalled) {
    Runtime.install({
      logger: { trace() {}, debug() {}, info() {}, warn() {}, error() {}, log() {} },
      telemetryOptions: { logging: { forward: {} } },
      shutdownSignals: [],
    });
    isRuntimeInstalled = true;
  }
  const connection = await NativeConnection.connect({ address });
  const client = new Client({ connection: await Connection.connect({ address }), namespace: 'default' });
  return { address, connection, client, namespace: 'default' };
}

/** Ends what `sharedTemporal` opened, once nothing stands on it. */
export async function closeSharedTemporal(): Promise<void> {
  if (shared === undefined) return;
  const { client, connection } = await shared;
  await client.connection.close();
  await connection.close();
}
