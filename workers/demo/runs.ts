import { readFile } from 'node:fs/promises';
import { z } from 'zod';

const OrderFile = z.array(
  z.object({
    order_id: z.string(),
    customer: z.object({ email: z.string() }),
    total_cents: z.int(),
    currency: z.string(),
    payment_id: z.string(),
    refund: z.object({}).nullable(),
  }),
);
type Order = z.infer<typeof OrderFile>[number];

/** One run that the demo starts, and what it does to it. */
export interface DemoRun {
  readonly orderId: string;
  readonly paymentId: string;
  readonly email: string;
  /** The message that the agent is given. */
  readonly input: string;
  /** What goes wrong, for the story; empty when nothing does. */
  readonly trouble: string;
  /** The body for the provider's POST /control, set before the run starts. */
  readonly dial: Readonly<Record<string, unknown>> | null;
  /** What a person does about it over the API, once the run waits for one. */
  readonly person: Person | null;
  /** The worker is killed while the provider holds this run's refund. */
  readonly killsWorker: boolean;
}

/** `approves` the refund, `cancels` the run while it waits for that, or `settles` an unknown outcome. */
export type Person = 'approves' | 'cancels' | 'settles';

interface Trouble {
  readonly orderId: string;
  readonly reason: string;
  readonly words: string;
  readonly killsWorker?: boolean;
  readonly person?: Person;
  dial?(order: Order): Readonly<Record<string, unknown>>;
}

// In the order of how much each shows, since `--runs` takes the first.
const TROUBLES: readonly Trouble[] = [
  {
    orderId: 'ORD-1003',
    reason: 'arrived broken',
    words: 'worker killed with -9 in mid-payment',
    killsWorker: true,
    dial: (order) => ({ mode: 'hold', for: { payment_id: order.payment_id }, delay_ms: 120_000 }),
  },
  {
    orderId: 'ORD-1004',
    reason: 'the mug has a crack',
    words: 'provider pays, then drops the answer',
    dial: (order) => ({ mode: 'commit_then_drop', for: { payment_id: order.payment_id } }),
  },
  {
    orderId: 'ORD-1005',
    reason: 'wrong colour',
    words: 'provider pays, then answers 500',
    dial: (order) => ({ mode: 'error_500_after_commit', for: { payment_id: order.payment_id } }),
  },
  {
    orderId: 'ORD-1008',
    reason: 'came three weeks late',
    words: 'provider pays, answers after the time-out',
    dial: (order) => ({ mode: 'late', for: { payment_id: order.payment_id }, delay_ms: 9_000 }),
  },
  {
    orderId: 'ORD-1009',
    reason: 'never asked for it',
    words: 'mail leaves, its answer is dropped: settled',
    person: 'settles',
    dial: (order) => ({ mode: 'commit_then_drop', on: 'mail', for: { to: order.customer.email } }),
  },
  { orderId: 'ORD-1010', reason: 'broke in use', words: 'a person approves it', person: 'approves' },
  { orderId: 'ORD-1011', reason: 'changed their mind', words: 'a person cancels it', person: 'cancels' },
  { orderId: 'ORD-1006', reason: 'does not fit the room', words: 'over the limit: refused politely' },
  { orderId: 'ORD-1007', reason: 'arrived broken', words: 'already refunded: refused politely' },
];

/** Every run that the demo can start, the ones with trouble first; each order is used once. */
export async function allDemoRuns(ordersPath: string): Promise<DemoRun[]> {
  const orders = OrderFile.parse(JSON.parse(await readFile(ordersPath, 'utf8')));
  const byId = new Map(orders.map((order) => [order.order_id, order]));
  const troubled = TROUBLES.map((trouble) => {
    const order = byId.get(trouble.orderId);
    if (order === undefined) throw new Error(`${ordersPath} lacks ${trouble.orderId}, which the demo uses.`);
    return demoRun(order, trouble);
  });
  const used = new Set(TROUBLES.map((trouble) => trouble.orderId));
  const quiet = orders
    .filter((order) => !used.has(order.order_id) && order.refund === null)
    .map((order) => demoRun(order, { orderId: order.order_id, reason: 'changed their mind', words: '' }));
  return [...troubled, ...quiet];
}

function demoRun(order: Order, trouble: Trouble): DemoRun {
  return {
    orderId: order.order_id,
    paymentId: order.payment_id,
    email: order.customer.email,
    input: `Refund order ${order.order_id}: ${trouble.reason}`,
    trouble: trouble.words,
    dial: trouble.dial?.(order) ?? null,
    person: trouble.person ?? null,
    killsWorker: trouble.killsWorker ?? false,
  };
}
