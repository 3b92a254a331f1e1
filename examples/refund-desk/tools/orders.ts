import { readFile } from 'node:fs/promises';
import { defineTool, rejected } from 'holdfast/tools';
import { z } from 'zod';

/** Above this, a manager decides; the desk refunds nothing by itself. In cents. */
const REFUND_LIMIT_CENTS = 25_000;

const Order = z.object({
  order_id: z.string(),
  placed_on: z.iso.date(),
  delivered_on: z.iso.date().nullable(),
  customer: z.object({ customer_id: z.string(), email: z.string() }),
  items: z.array(
    z.object({ sku: z.string(), name: z.string(), quantity: z.int(), unit_price_cents: z.int() }),
  ),
  total_cents: z.int(),
  currency: z.string(),
  payment_id: z.string(),
  refund: z.object({ refund_id: z.string(), refunded_on: z.iso.date() }).nullable(),
});
type Order = z.infer<typeof Order>;

const OrderInput = z.strictObject({
  order_id: z
    .string()
    .regex(/^ORD-\d{4}$/)
    .describe('The order, for example ORD-1003.'),
});

/** Looks an order up in the shop's books. */
export const readOrder = defineTool({
  name: 'read_order',
  description: 'Reads one order: its items, total, payment, customer, delivery and any earlier refund.',
  input: OrderInput,
  effect: { class: 'read', namespace: 'orders' },
  parallel: true,
  // Read from a file: it takes the fast lane.
  short: true,
  timeoutSeconds: 5,
  async run({ order_id }) {
    return (await findOrder(order_id)) ?? unknownOrder(order_id);
  },
});

/** Says what the shop's refund policy allows for an order, and why. */
export const checkRefundPolicy = defineTool({
  name: 'check_refund_policy',
  description: 'Says whether the desk may refund an order by itself, how much, and why.',
  input: OrderInput,
  effect: { class: 'read', namespace: 'orders' },
  parallel: true,
  short: true,
  timeoutSeconds: 5,
  async run({ order_id }) {
    const order = await findOrder(order_id);
    return order === undefined ? unknownOrder(order_id) : judge(order);
  },
});

function judge(order: Order) {
  const no = (code: string, why: string) => ({
    order_id: order.order_id,
    decision: 'refuse',
    code,
    refund_cents: 0,
    currency: order.currency,
    refund_amount: amount(0, order.currency),
    why,
  });
  if (order.refund !== null) {
    const { refund_id, refunded_on } = order.refund;
    return no('already_refunded', `it was refunded on ${refunded_on} as ${refund_id}`);
  }
  if (order.delivered_on === null) return no('not_delivered', 'it has not been delivered yet');
  if (order.total_cents > REFUND_LIMIT_CENTS) {
    const limit = amount(REFUND_LIMIT_CENTS, order.currency);
    return no('over_limit', `it is over ${limit}, so a manager has to decide`);
  }
  return {
    order_id: order.order_id,
    decision: 'refund',
    code: 'within_policy',
    refund_cents: order.total_cents,
    currency: order.currency,
    refund_amount: amount(order.total_cents, order.currency),
    why: 'it was delivered, is within the limit and was never refunded',
  };
}

/** For people: `174.50 EUR`. */
function amount(cents: number, currency: string): string {
  return `${(cents / 100).toFixed(2)} ${currency}`;
}

function unknownOrder(orderId: string) {
  const value = { error: `There is no order ${orderId}. Ask the customer for the number on the invoice.` };
  return rejected({ status: 'order_not_found', value });
}

/** Reads the file each time, as a shop's database would be asked: the books may change under a long run. */
async function findOrder(orderId: string): Promise<Order | undefined> {
  const text = await readFile(new URL('../orders.json', import.meta.url), 'utf8');
  return z
    .array(Order)
    .parse(JSON.parse(text))
    .find((order) => order.order_id === orderId);
}
