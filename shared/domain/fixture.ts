import { z } from 'zod';
import type { JsonValue } from './json.js';

/** Names the form of a fixture; raised when that changes. */
export const FIXTURE_SCHEMA = 'holdfast.run-fixture/1';

const count = z.int().min(0);
/** Whatever a caller, a model, a tool or a person gave; the reader of the file has checked that it is faithful. */
const Json = z.unknown() as z.ZodType<JsonValue>;
const JsonMap = z.record(z.string(), Json);

/** Bytes of a target: as text where they are well-formed UTF-8, else as base64. */
const FixtureBody = z.strictObject({
  text: z.string().optional(),
  base64: z.string().optional(),
  content_type: z.string().nullable(),
  truncated: z.boolean(),
});
export type FixtureBody = z.output<typeof FixtureBody>;

const Place = { turn: z.int().min(1), step: z.int().min(0) };

const ModelAttempt = z.strictObject({
  outcome: z.enum(['answered', 'failed', 'lost']),
  reason: z.string().nullable(),
  detail: z.string().nullable(),
  retry_after_ms: count.nullable(),
  input_tokens: count,
  output_tokens: count,
  took_ms: count,
});

const ModelCall = z.strictObject({
  ...Place,
  attempts: z.array(ModelAttempt),
  /** The model's answer as the adapter gave it; null where it never gave one. */
  response: JsonMap.nullable(),
});
export type FixtureModelCall = z.output<typeof ModelCall>;

const Attempt = z.strictObject({
  outcome: z.enum(['succeeded', 'rejected', 'not_sent', 'throttled', 'in_progress', 'unknown', 'lost']),
  reason: z.string().nullable(),
  retry_after_ms: count.nullable(),
  /** The outside name of what was done. */
  reference: z.string().nullable(),
  target_status: z.string().nullable(),
  body: FixtureBody.nullable(),
  took_ms: count,
});
export type FixtureAttempt = z.output<typeof Attempt>;

const Query = z.strictObject({
  answer: z.enum(['found', 'absent', 'inconclusive']),
  reason: z.string().nullable(),
  reference: z.string().nullable(),
  body: FixtureBody.nullable(),
});

const Effect = z.strictObject({
  ...Place,
  slot: count,
  redo: count,
  tool: z.string(),
  effect_class: z.enum(['read', 'keyed', 'queryable', 'opaque']),
  idempotency_key: z.string(),
  arguments: Json,
  /** What became of it. */
  state: z.string(),
  /** Who said so; null where nothing left. */
  source: z.enum(['response', 'probe', 'late_receipt', 'person']).nullable(),
  reference: z.string().nullable(),
  attempts: z.array(Attempt),
  queries: z.array(Query),
});
export type FixtureEffect = z.output<typeof Effect>;

/** Where a word came: after so many calls began and so many moves of the run, and during which call, if during one. */
const WordPlace = z.strictObject({
  calls: count,
  moves: count,
  /** `model t1 s2`, or an idempotency key. */
  during: z.string().nullable(),
  /** How long after whatever happened before it. */
  after_ms: count,
});

const Said = { at: WordPlace, actor: z.string(), authority: z.string() };
const Wait = z.strictObject({ kind: z.string(), ...Place, slot: count.nullable() });

const Word = z.discriminatedUnion('kind', [
  z.strictObject({
    ...{ kind: z.literal('decision'), ...Said, wait: Wait, note: z.string() },
    decision: z.enum(['approve', 'deny', 'revoke']),
    /** What the arguments were changed to; null where they were not. */
    edit: z
      .strictObject({
        arguments: Json,
        policy: JsonMap,
        role: z.string(),
        quorum: z.int().min(1),
        rules: z.array(z.strictObject({ name: z.string(), sha256: z.string() })),
        expires_ms: count,
      })
      .nullable(),
  }),
  z.strictObject({
    ...{ kind: z.literal('answer'), ...Said, wait: Wait, note: z.string(), answer: Json },
  }),
  z.strictObject({
    ...{ kind: z.literal('settlement'), ...Said, note: z.string() },
    /** The key of the effect that it is about. */
    effect: z.string(),
    decided: z.enum(['committed', 'not_committed', 'compensated', 'left']),
    reference: z.string().nullable(),
  }),
  z.strictObject({
    ...{ kind: z.literal('command'), ...Said, payload: JsonMap },
    command: z.enum(['pause', 'resume', 'cancel', 'change_budget', 'change_deadline']),
  }),
]);
export type FixtureWord = z.output<typeof Word>;

/** What a replay must come to. What is taken out of it is not looked at. */
const Expect = z.strictObject({
  end: z.strictObject({ state: z.string(), reason: z.string().nullable() }),
  /** The moves of either region, in their order: the state and why. */
  path: z.array(z.string()).optional(),
  control: z.array(z.string()).optional(),
  /** Every message of the transcript: where it stands, who speaks, and the digest of what it says. */
  messages: z.array(z.string()).optional(),
});
export type FixtureExpect = z.output<typeof Expect>;

/**
 * A run as a regression fixture (SPEC 4.2): what it was given, what the model and the tools answered, what people said and
 * when, and what must come of it. Ids, times and digests of the ledger it came from are not in it, so a replay makes its own.
 */
export const FixtureDocument = z.strictObject({
  schema: z.literal(FIXTURE_SCHEMA),
  run: z.strictObject({
    run_id: z.string(),
    tenant_id: z.string(),
    actor: z.string(),
    input: Json,
    contract: JsonMap,
    took_ms: count,
  }),
  pins: JsonMap,
  /** The manifest that the run had pinned. */
  agent: JsonMap,
  model: z.array(ModelCall),
  effects: z.array(Effect),
  words: z.array(Word),
  expect: Expect,
  /** How many values were replaced on the way out. */
  redacted: count,
});
export type FixtureDocument = z.output<typeof FixtureDocument>;

/** A fixture as a file holds it. */
export const RunFixture = z.strictObject({ document: FixtureDocument, sha256: z.string() });
export type RunFixture = z.output<typeof RunFixture>;

/** What of a run is not to leave with its fixture. */
export const RedactionRules = z.strictObject({
  /** JSON pointers into the fixture's document; `*` stands for every member. What they lead to is replaced everywhere. */
  pointers: z.array(z.string().max(500)).max(100).default([]),
  /** Texts that are replaced wherever they stand. */
  words: z.array(z.string().min(3).max(1_000)).max(100).default([]),
});
export type RedactionRules = z.output<typeof RedactionRules>;
