import { createHash } from 'node:crypto';
import { z } from 'zod';
import type { JournalEntry } from './journal.js';

/** A captured payment, as the provider's file of payments lists it. Amounts are in cents. */
export const Payment = z.strictObject({
  payment_id: z.string().min(1),
  amount_cents: z.int().positive(),
  currency: z.string().length(3),
  /** Given back before this journal began. */
  refunded_cents: z.int().nonnegative(),
});
export type Payment = z.infer<typeof Payment>;

/** The body of POST /refunds. */
export const RefundRequest = z.strictObject({
  payment_id: z.string().min(1).max(100),
  amount_cents: z.int().positive(),
  currency: z.string().length(3),
  reason: z.string().min(1).max(500),
});
export type RefundRequest = z.infer<typeof RefundRequest>;

/** What a key was answered, for ever. */
export interface KeptAnswer {
  readonly digest: string;
  /** Of the first answer. */
  readonly status: number;
  readonly body: Readonly<Record<string, unknown>>;
}

/** Why a refund is refused for good. */
export interface Refusal {
  readonly status: number;
  readonly code: string;
  readonly message: string;
}

/**
 * The provider's memory: what each key was answered and what is left of each payment. It is made of the
 * journal alone, so a killed provider that starts again knows everything it ever answered.
 */
export class Book {
  readonly #payments: ReadonlyMap<string, Payment>;
  readonly #answers = new Map<string, KeptAnswer>();
  readonly #refundedCents = new Map<string, number>();

  constructor(payments: readonly Payment[]) {
    this.#payments = new Map(payments.map((payment) => [payment.payment_id, payment]));
    for (const payment of payments) this.#refundedCents.set(payment.payment_id, payment.refunded_cents);
  }

  /** Takes in one journal entry; each exactly once, in the order of the journal. */
  record(entry: JournalEntry): void {
    if (entry.kind === 'applied') {
      this.#answers.set(entry.key, { digest: entry.digest, status: 201, body: refundBody(entry) });
      this.#refundedCents.set(entry.payment_id, this.#refundedSoFar(entry.payment_id) + entry.amount_cents);
    } else if (entry.kind === 'refused' && entry.key !== null && entry.digest !== null) {
      const body = { error: { code: entry.code, message: entry.message } };
      this.#answers.set(entry.key, { digest: entry.digest, status: entry.status, body });
    }
  }

  /** What `key` was answered; undefined when it never was. */
  answerTo(key: string): KeptAnswer | undefined {
    return this.#answers.get(key);
  }

  /** The payment with what has been given back by now; undefined when there is none. */
  payment(paymentId: string): Payment | undefined {
    const payment = this.#payments.get(paymentId);
    return payment && { ...payment, refunded_cents: this.#refundedSoFar(paymentId) };
  }

  /** Says why `request` must be refused; undefined when the money can move. */
  refusalOf(request: RefundRequest): Refusal | undefined {
    const payment = this.payment(request.payment_id);
    if (payment === undefined) {
      return {
        status: 404,
        code: 'payment_not_found',
        message: `There is no payment ${request.payment_id}.`,
      };
    }
    if (payment.currency !== request.currency) {
      const message = `Payment ${payment.payment_id} is in ${payment.currency}, not in ${request.currency}.`;
      return { status: 422, code: 'currency_mismatch', message };
    }
    const leftCents = payment.amount_cents - payment.refunded_cents;
    if (request.amount_cents > leftCents) {
      const message =
        `Payment ${payment.payment_id} has ${leftCents} cents left to refund; ` +
        `${request.amount_cents} were asked for.`;
      return { status: 422, code: leftCents === 0 ? 'already_refunded' : 'amount_too_large', message };
    }
    return undefined;
  }

  #refundedSoFar(paymentId: string): number {
    return this.#refundedCents.get(paymentId) ?? 0;
  }
}

/** Tells two bodies under one key apart: SHA-256, lower-case hex. */
export function digestOf(request: RefundRequest): string {
  const { payment_id, amount_cents, currency, reason } = request;
  const text = JSON.stringify([payment_id, amount_cents, currency, reason]);
  return createHash('sha256').update(text).digest('hex');
}

function refundBody(entry: Extract<JournalEntry, { kind: 'applied' }>): Readonly<Record<string, unknown>> {
  return {
    refund_id: entry.refund_id,
    status: 'succeeded',
    payment_id: entry.payment_id,
    amount_cents: entry.amount_cents,
    currency: entry.currency,
    reason: entry.reason,
    created_at: entry.at,
  };
}
