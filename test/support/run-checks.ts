import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import { isSettled } from '../../shared/domain/effect-machine.js';
import type { ModelRequest } from '../../shared/domain/models.js';
import { edges, isTerminal, type RunState } from '../../shared/domain/run-machine.js';
import type { TargetLogEntry } from './http-target.js';
import type { LedgerView } from './ledger-view.js';
import type { World } from './world.js';

/** The name of the file, in the world's folder, that a script names as its `log` for these checks to read it. */
export const REQUEST_LOG = 'requests.jsonl';

/** Every request that the scripted model got for this run, oldest first. */
export function modelRequests(world: World, runId: string): ModelRequest[] {
  const path = join(world.folder, REQUEST_LOG);
  if (!existsSync(path)) return [];
  return readFileSync(path, 'utf8')
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line) as ModelRequest)
    .filter(({ callKey }) => callKey.startsWith(`${runId}:`));
}

/** What holds of every run at every moment, whatever happened to it (CASES "always checked", SPEC 12). */
export async function checkRun(world: World, runId: string): Promise<void> {
  // Read before the ledger: what arrived had its intent and its claim before.
  const arrived = world.targetLog(runId).filter(({ kind }) => kind === 'arrived');
  await world.snapshot(async (ledger) => {
    await checkPath(ledger, runId);
    await checkFeed(ledger, runId);
    await checkEffects(ledger, runId, arrived);
  });
  modelRequests(world, runId).forEach(checkMessages);
}

const LEGAL = new Set(edges().map(({ region, from, to }) => `${region} ${from} → ${to}`));

async function checkPath(ledger: LedgerView, runId: string): Promise<void> {
  const run = await ledger.runRow(runId);
  const transitions = await ledger.transitions(runId);
  expect(transitions.map(({ seq }) => seq)).toEqual(transitions.map((_, index) => index + 1));
  const at: Record<string, string> = { run: 'admitted', control: 'active' };
  for (const { region, from_state, to_state } of transitions.slice(1)) {
    expect(from_state).toBe(at[region]);
    expect(LEGAL).toContain(`${region} ${from_state} → ${to_state}`);
    at[region] = to_state;
  }
  expect(at).toEqual({ run: run.state, control: run.control });
  expect(run.state_version).toBe(transitions.length);
  const epochs = transitions.map(({ epoch }) => epoch);
  expect(epochs).toEqual([...epochs].sort((a, b) => a - b));
  const ends = transitions.filter(
    ({ region, to_state }) => region === 'run' && isTerminal(to_state as RunState),
  );
  expect(ends).toHaveLength(run.ended_at === null ? 0 : 1);
}

async function checkFeed(ledger: LedgerView, runId: string): Promise<void> {
  const events = await ledger.events(runId);
  expect(events.map(({ seq }) => seq)).toEqual(events.map((_, index) => index + 1));
  expect(events[0]?.type).toBe('run.admitted');
  const moved = events
    .filter(({ type }) => type === 'run.transition')
    .map(({ data }) => [data['state_version'], data['region'], data['from'], data['to'], data['reason']]);
  const transitions = await ledger.transitions(runId);
  expect(moved).toEqual(
    transitions
      .slice(1)
      .map(({ seq, region, from_state, to_state, reason }) => [seq, region, from_state, to_state, reason]),
  );
  const { ended_at } = await ledger.runRow(runId);
  if (ended_at !== null) {
    const last = events.at(-1);
    expect([last?.type, isTerminal(last?.data['to'] as RunState)]).toEqual(['run.transition', true]);
  }
}

async function checkEffects(
  ledger: LedgerView,
  runId: string,
  arrived: readonly TargetLogEntry[],
): Promise<void> {
  const run = await ledger.runRow(runId);
  const receipts = await ledger.receipts(runId);
  const effects = await ledger.effects(runId);
  for (const effect of effects) {
    const own = receipts.filter(({ effect_id }) => effect_id === effect.effect_id);
    const isProven = ['succeeded', 'rejected', 'committed'].includes(effect.state);
    // A read that is given up is settled by its class: there is nothing to prove.
    const isProvenAbsent = effect.state === 'not_committed' && effect.effect_class !== 'read';
    expect(own).toHaveLength(isProven || isProvenAbsent ? 1 : 0);
    if (run.ended_at !== null) expect(isSettled(effect.state)).toBe(true);
    expect(effect.attempts === 0).toBe((await attemptsOf(ledger, effect.effect_id)) === 0);
  }
  const owners = new Set(effects.map(({ effect_id }) => effect_id));
  expect(receipts.every(({ effect_id }) => owners.has(effect_id))).toBe(true);
  // Nothing arrived at a target without an intent, and never more often than it was claimed.
  for (const { key } of arrived) {
    const effect = effects.find(({ idempotency_key }) => idempotency_key === key);
    const arrivals = arrived.filter((entry) => entry.key === key);
    expect(arrivals.length).toBeLessThanOrEqual(effect?.attempts ?? 0);
  }
}

async function attemptsOf(ledger: LedgerView, effectId: string): Promise<number> {
  const rows = await ledger.rows('select 1 from holdfast.attempts where effect_id = $1', effectId);
  return rows.length;
}

/**
 * Valid for every provider: each call has exactly one result, straight after it and in call order, ids are unique, and
 * no result is without its call.
 */
export function checkMessages({ messages }: ModelRequest): void {
  expect(messages[0]?.role).toBe('user');
  const seen = new Set<string>();
  messages.forEach((message, index) => {
    if (message.role === 'tool') {
      expect(messages[index - 1]?.role).toBe('assistant');
      return;
    }
    if (message.role === 'user') return;
    expect(message.parts.length).toBeGreaterThan(0);
    const calls = message.parts.flatMap((part) => (part.type === 'tool_call' ? [part.callId] : []));
    for (const callId of calls) {
      expect(seen.has(callId)).toBe(false);
      seen.add(callId);
    }
    const next = messages[index + 1];
    const answered = next?.role === 'tool' ? next.results.map(({ callId }) => callId) : [];
    expect(answered).toEqual(calls);
  });
}

/** How often the target did what this run asked for, by key. */
export function applied(world: World, runId: string): Record<string, number> {
  return countByKey(world, runId, 'applied');
}

/** How often a request of this run reached the target, by key. */
export function arrived(world: World, runId: string): Record<string, number> {
  return countByKey(world, runId, 'arrived');
}

function countByKey(world: World, runId: string, kind: 'applied' | 'arrived'): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const entry of world.targetLog(runId)) {
    if (entry.kind === kind) counts[entry.key] = (counts[entry.key] ?? 0) + 1;
  }
  return counts;
}
