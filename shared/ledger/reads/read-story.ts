import { isTerminal, type RunState } from '../../domain/run-machine.js';
import type { EffectClass } from '../../domain/effect-classes.js';
import type { EffectState } from '../../domain/effect-machine.js';
import type { Db } from '../database.js';
import { type ChainProblem, verifyTransitions } from '../verify-transitions.js';
import { jsonTimeOrNull, type RunKey } from './row-values.js';
import { READ_STORY } from './story-rows.js';
import { endSentence, storySentence } from './story-words.js';

/** One thing that happened. */
export interface StoryEntry {
  /** In microseconds, by the database's clock. */
  readonly at: string;
  readonly kind: string;
  /** Who did it: a person, a worker, or a part of Holdfast (`holdfast:…`). */
  readonly actor: string;
  readonly what: string;
  /** A reason code, an error code or a person's note; null where there is none. */
  readonly reason: string | null;
  readonly ids: Readonly<Record<string, string>>;
}

export const STORY_OUTCOMES = ['happened', 'did_not_happen', 'never_sent', 'unknown'] as const;
export type StoryOutcome = (typeof STORY_OUTCOMES)[number];

/** An effect and what became of it, as its receipt, reconciliation and attempts say. */
export interface StoryEffect {
  readonly effect_id: string;
  readonly tool: string;
  readonly effect_class: EffectClass;
  readonly reference: string | null;
  /** Whose word it is: a worker's, a person's, or the ledger's; null while nobody has said. */
  readonly actor: string | null;
  /** Who must find out, by when; present while the outcome is unknown. */
  readonly owner: string | null;
  readonly deadline_at: string | null;
}

export interface StoryGroup {
  readonly count: number;
  /** The first 1,000, in call order. */
  readonly effects: readonly StoryEffect[];
}

/** A run's story, made from its tables of record alone. */
export interface Story {
  readonly run_id: string;
  /** Null while the run is open. */
  readonly end: {
    readonly outcome: RunState;
    readonly reason: string;
    /** Who made the last move. */
    readonly actor_id: string;
    /** Who asked for the cancel that ended it; null for every other end. */
    readonly asked_by: string | null;
    readonly at: string;
    readonly meaning: string;
  } | null;
  /** Effects that can have changed something; reads are only counted. */
  readonly effects: Readonly<Record<StoryOutcome, StoryGroup>> & { readonly reads: number };
  /** Who did what how often, in the order of their first act. */
  readonly actors: readonly { readonly actor: string; readonly did: Readonly<Record<string, number>> }[];
  /** Whether the chain of transitions is whole, recomputed now. */
  readonly chain: {
    readonly holds: boolean;
    readonly transitions: number;
    readonly broken: { readonly seq: number; readonly problem: ChainProblem } | null;
  };
  /** Effects whose own state says something else than their rows do; empty unless somebody touched the ledger. */
  readonly disagreements: readonly {
    readonly effect_id: string;
    readonly state: EffectState;
    readonly outcome: StoryOutcome;
  }[];
  readonly entries_total: number;
  readonly entries: readonly StoryEntry[];
}

/** The place of an entry; pages go on after one. */
export type StoryPlace = readonly [at: string, rank: number, ref: string];

/**
 * The story of a run: a page of entries after the place `after`, and what the whole of it means. Null when this tenant has
 * no such run. Reads no event.
 */
export async function readStory(
  db: Db,
  key: RunKey,
  page: { readonly after: StoryPlace | null; readonly limit: number },
): Promise<{ readonly story: Story; readonly last: StoryPlace | null } | null> {
  const [at = null, rank = null, ref = null] = page.after ?? [];
  const values = [key.runId, key.tenantId, at, rank, ref, page.limit];
  const { rows } = await db.query<StoryRow>({ ...READ_STORY, values });
  const row = rows[0];
  if (row === undefined) return null;
  const chain = await verifyTransitions(db, { runId: key.runId });
  const broken = chain.broken[0];
  const last = row.entries.length < page.limit ? undefined : row.entries.at(-1);
  const effects = groupsOf(row);
  return {
    story: {
      run_id: key.runId,
      end: endOf(row.last_move, effects),
      effects: { ...effects, reads: row.reads },
      actors: row.actors.map(({ actor, did }) => ({ actor, did })),
      chain: {
        holds: broken === undefined,
        transitions: chain.transitions,
        broken: broken === undefined ? null : { seq: broken.seq, problem: broken.problem },
      },
      disagreements: row.disagreements,
      entries_total: row.total,
      entries: row.entries.map(({ at, kind, actor, reason, ids, data }) => ({
        ...{ at, kind, actor, what: storySentence({ kind, data }), reason, ids },
      })),
    },
    last: last === undefined ? null : [last.at, last.rank, last.ref],
  };
}

interface StoryRow {
  readonly entries: readonly (Omit<StoryEntry, 'what'> & {
    readonly rank: number;
    readonly ref: string;
    readonly data: Readonly<Record<string, unknown>>;
  })[];
  readonly total: number;
  readonly actors: Story['actors'];
  readonly counts: Readonly<Partial<Record<StoryOutcome, number>>>;
  readonly reads: number;
  readonly effects: readonly (StoryEffect & { readonly outcome: StoryOutcome })[];
  readonly disagreements: Story['disagreements'];
  readonly last_move: {
    readonly state: RunState;
    readonly reason: string;
    readonly actor_id: string;
    readonly asked_by: string | null;
    readonly at: string;
  } | null;
}

function groupsOf({ counts, effects }: StoryRow): Record<StoryOutcome, StoryGroup> {
  const group = (name: StoryOutcome): StoryGroup => ({
    count: counts[name] ?? 0,
    effects: effects
      .filter(({ outcome }) => outcome === name)
      .map(({ effect_id, tool, effect_class, reference, actor, owner, deadline_at }) => ({
        ...{ effect_id, tool, effect_class, reference, actor, owner },
        deadline_at: jsonTimeOrNull(deadline_at),
      })),
  });
  return {
    happened: group('happened'),
    did_not_happen: group('did_not_happen'),
    never_sent: group('never_sent'),
    unknown: group('unknown'),
  };
}

function endOf(move: StoryRow['last_move'], effects: Record<StoryOutcome, StoryGroup>): Story['end'] {
  if (move === null || !isTerminal(move.state)) return null;
  const { state: outcome, reason, actor_id, asked_by, at } = move;
  const meaning = endSentence(outcome, {
    happened: effects.happened.count,
    did_not_happen: effects.did_not_happen.count,
    never_sent: effects.never_sent.count,
    unknown: effects.unknown.count,
  });
  return { outcome, reason, actor_id, asked_by, at, meaning };
}
