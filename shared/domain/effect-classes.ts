/**
 * How a target behaves when the same request reaches it twice, and so what an `unknown` outcome may
 * become (SPEC 3.3). Declared by the tool, owned by the operator.
 */
export const EFFECT_CLASSES = ['read', 'keyed', 'queryable', 'opaque'] as const;
export type EffectClass = (typeof EFFECT_CLASSES)[number];

/** What one attempt at an effect is known to have done (SPEC 3.2). `unknown` is a value, never an exception. */
export const EFFECT_OUTCOMES = [
  'succeeded',
  'rejected',
  'not_sent',
  'throttled',
  'in_progress',
  'unknown',
] as const;
export type EffectOutcome = (typeof EFFECT_OUTCOMES)[number];
