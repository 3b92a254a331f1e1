import { z } from 'zod';

/** The ways in which the provider can be told to misbehave. */
export const DIAL_MODES = [
  'ok',
  'hold',
  'commit_then_drop',
  'error_500_after_commit',
  'error_500_before_commit',
  'late',
] as const;
export type DialMode = (typeof DIAL_MODES)[number];

/**
 * The body of POST /control. `ok` takes back every dial it fits and releases what is held; any other mode
 * bites on the next `requests` new requests that fit. A key that was answered before is replayed
 * undisturbed: the dials spoil first answers.
 */
export const ControlRequest = z.strictObject({
  mode: z.enum(DIAL_MODES),
  on: z.enum(['refunds', 'mail']).default('refunds'),
  for: z
    .strictObject({
      requests: z.int().min(1).max(1000).optional(),
      /** Only refunds of this payment. */
      payment_id: z.string().optional(),
      /** Only mail to this address. */
      to: z.string().optional(),
    })
    .default({}),
  /** `late`: the answer comes this long after the work. `hold`: the work begins by itself after this long. */
  delay_ms: z.int().min(0).max(600_000).default(5_000),
});
export type ControlRequest = z.infer<typeof ControlRequest>;

/** What one request runs into. */
export interface Bite {
  readonly mode: DialMode;
  readonly delayMs: number;
  /** Settles when the work may begin; at once in every mode but `hold`. */
  readonly released: Promise<void>;
}

interface Dial {
  readonly on: 'refunds' | 'mail';
  /** A payment id or a mail address; null fits all. */
  readonly subject: string | null;
  readonly mode: Exclude<DialMode, 'ok'>;
  readonly delayMs: number;
  requestsLeft: number;
}

interface Held {
  readonly on: 'refunds' | 'mail';
  readonly subject: string;
  readonly release: () => void;
}

/** The provider's dials. They live in memory: a provider that starts again behaves. */
export class Dials {
  #dials: Dial[] = [];
  readonly #held = new Set<Held>();

  /** Sets or takes back dials as the control request says. */
  turn(request: ControlRequest): void {
    const subject = request.for.payment_id ?? request.for.to ?? null;
    if (request.mode !== 'ok') {
      const requestsLeft = request.for.requests ?? 1;
      this.#dials.push({
        on: request.on,
        subject,
        mode: request.mode,
        delayMs: request.delay_ms,
        requestsLeft,
      });
      return;
    }
    const fits = (one: { on: string; subject: string | null }): boolean =>
      one.on === request.on && (subject === null || one.subject === subject);
    this.#dials = this.#dials.filter((dial) => !fits(dial));
    for (const held of this.#held) if (fits(held)) held.release();
  }

  /** Takes the oldest dial that fits this request, using it up by one. */
  bite(on: 'refunds' | 'mail', subject: string): Bite {
    const dial = this.#dials.find((one) => one.on === on && (one.subject ?? subject) === subject);
    if (dial === undefined) return { mode: 'ok', delayMs: 0, released: Promise.resolve() };
    dial.requestsLeft -= 1;
    if (dial.requestsLeft === 0) this.#dials = this.#dials.filter((one) => one !== dial);
    const released = dial.mode === 'hold' ? this.#hold(on, subject, dial.delayMs) : Promise.resolve();
    return { mode: dial.mode, delayMs: dial.delayMs, released };
  }

  #hold(on: 'refunds' | 'mail', subject: string, delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      const release = (): void => {
        clearTimeout(timer);
        this.#held.delete(held);
        resolve();
      };
      const held: Held = { on, subject, release };
      const timer = setTimeout(release, delayMs);
      timer.unref();
      this.#held.add(held);
    });
  }
}
