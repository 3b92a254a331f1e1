import { randomUUID } from 'node:crypto';
import type { Db } from '../../shared/ledger/database.js';
import { type Forked, forkRun, type NewFork } from '../../shared/ledger/forks.js';
import { type CheckpointRecord, listCheckpoints } from '../../shared/ledger/reads/read-checkpoints.js';
import { callOf, LedgerRun } from './ledger-run.js';
import type { LedgerView } from './ledger-view.js';
import type { LedgerWorld } from './ledger-world.js';

/** A run with the ledger that holds it. */
export interface Forkable {
  readonly world: { readonly db: Db };
  readonly runId: string;
}

/** Every checkpoint of a run, in order. */
export async function checkpointsOf({ world, runId }: Forkable): Promise<CheckpointRecord[]> {
  return await listCheckpoints(world.db, { tenantId: 'default', runId }, { after: 0, limit: 1_000 });
}

/** The last checkpoint of a run at a boundary. */
export async function checkpointAt(
  run: Forkable,
  boundary: CheckpointRecord['boundary'],
): Promise<CheckpointRecord> {
  const found = (await checkpointsOf(run)).findLast((checkpoint) => checkpoint.boundary === boundary);
  if (found === undefined) throw new Error(`${run.runId} has no checkpoint at ${boundary}`);
  return found;
}

/** Asks for a fork, as an operator under a key of its own unless told otherwise. */
export async function askFork(
  run: Forkable,
  checkpointId: string,
  changes: Partial<NewFork> = {},
): Promise<Forked | null> {
  return await forkRun(run.world.db, {
    ...{ tenantId: 'default', sourceRunId: run.runId, checkpointId, mode: 'simulate', pins: 'keep' },
    ...{ job: 'own', edits: {}, limits: {}, budget: undefined, actorId: 'user:olga', authority: 'operator' },
    ...{ endpoint: `POST /v1/runs/${run.runId}/forks`, idempotencyKey: randomUUID() },
    taskQueue: 'nobody-listens',
    ...changes,
  });
}

/** A fork of a run from a checkpoint, running, in the hands of an execution of its own. */
export async function newFork(
  run: LedgerRun,
  checkpoint: Pick<CheckpointRecord, 'checkpoint_id'>,
  changes: Partial<NewFork> = {},
): Promise<LedgerRun> {
  const forked = await askFork(run, checkpoint.checkpoint_id, changes);
  if (forked?.kind !== 'forked') throw new Error(`not forked: ${JSON.stringify(forked)}`);
  const fork = new LedgerRun(run.world, forked.runId, `exec-${randomUUID()}`);
  await fork.start();
  return fork;
}

/** Every row that names the run, of every table, as text: what must not change when it is forked. */
export async function rowsOf(world: LedgerView, runId: string): Promise<Record<string, string[]>> {
  const tables = await world.rows<{ name: string }>(
    `select c.relname as name from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'run_id'
      where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r' order by 1`,
  );
  const all: Record<string, string[]> = {};
  for (const { name } of tables) {
    const rows = await world.rows<{ row: string }>(
      `select t::text as row from holdfast.${name} t where run_id = $1 order by 1`,
      runId,
    );
    all[name] = rows.map(({ row }) => row);
  }
  return all;
}

/** A fork that inherits an effect, and whose one call is answered from a receipt of its source. */
export async function addFork(world: LedgerWorld): Promise<LedgerRun> {
  const source = await world.newStep([callOf('opaque')]);
  await source.call(0).attempt('succeeded');
  const checkpoint = await checkpointAt(source, 'effect_settled');
  await source.plan([callOf('opaque')]);
  await source.call(0).attempt('succeeded');
  const fork = await newFork(source, checkpoint);
  await fork.plan([callOf('opaque'), callOf('keyed')]);
  for (const slot of [0, 1]) await fork.call(slot).ask();
  return fork;
}
