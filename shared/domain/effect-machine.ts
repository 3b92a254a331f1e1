import type { EffectClass } from './effect-classes.js';

/**
 * What one effect may do, as data (SPEC 3.3). `committed` and `not_committed` are reached by reconciliation only;
 * what was settled as not committed is never revived.
 */
export const EFFECT_STATES = [
  'intended',
  'dispatching',
  'succeeded',
  'rejected',
  'unknown',
  'committed',
  'not_committed',
  'denied',
  'withdrawn',
  'superseded',
] as const;
export type EffectState = (typeof EFFECT_STATES)[number];

export const EFFECT_EVENTS = [
  'claim',
  'confirm',
  'refuse',
  'release',
  'lose',
  'resend',
  'settle_committed',
  'settle_not_committed',
  'deny',
  'withdraw',
  'supersede',
] as const;
export type EffectEvent = (typeof EFFECT_EVENTS)[number];

export const EFFECT_MOVES: Readonly<Record<EffectState, { readonly [E in EffectEvent]?: EffectState }>> = {
  intended: {
    claim: 'dispatching',
    deny: 'denied',
    withdraw: 'withdrawn',
    supersede: 'superseded',
  },
  dispatching: {
    confirm: 'succeeded',
    refuse: 'rejected',
    // Proof of `not_sent`, or the target's word that it did nothing.
    release: 'intended',
    lose: 'unknown',
  },
  unknown: {
    // The same key again: classes `read` and `keyed` only (`mayResend`), inside the window and the count.
    resend: 'dispatching',
    settle_committed: 'committed',
    settle_not_committed: 'not_committed',
  },
  succeeded: {},
  rejected: {},
  committed: {},
  not_committed: {},
  denied: {},
  withdrawn: {},
  superseded: {},
};

/** The classes whose unknown outcome may be answered by the same request under the same key. */
export function mayResend(effectClass: EffectClass): boolean {
  return effectClass === 'read' || effectClass === 'keyed';
}

/** Whether the outside truth is settled, or the effect never left. */
export function isSettled(state: EffectState): boolean {
  return Object.keys(EFFECT_MOVES[state]).length === 0;
}
