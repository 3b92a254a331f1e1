import { createHash, randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import express, { type Express, type NextFunction, type Request, type Response } from 'express';
import { z } from 'zod';
import { type Book, digestOf, RefundRequest } from './book.js';
import { type Bite, ControlRequest, type Dials } from './dials.js';
import type { Journal, JournalEntry, NewEntry } from './journal.js';

/** What the provider's app works on. */
export interface ProviderParts {
  readonly journal: Journal;
  readonly book: Book;
  readonly dials: Dials;
}

const MailRequest = z.strictObject({
  to: z.email().max(200),
  subject: z.string().min(1).max(200),
  text: z.string().min(1).max(20_000),
});

/** Printable ASCII, as long as the keys of real providers. */
const KEY_FORM = /^[\x21-\x7e]{1,255}$/;

/**
 * Makes the payment provider's HTTP app; it listens nowhere by itself.
 *
 * POST /refunds honours `Idempotency-Key` for ever. POST /mail honours none: a mail leaves each time it is
 * asked for. Every arrival and every deed is in the journal, on the disk, before anything is answered.
 */
export function createProviderApp(parts: ProviderParts): Express {
  const { book, dials } = parts;
  const inWork = new Map<string, string>();
  const app = express();
  app.disable('x-powered-by');
  app.use(express.json({ limit: '64kb' }));
  app.post('/refunds', (req, res) => postRefund({ ...parts, inWork }, req, res));
  app.post('/mail', (req, res) => postMail(parts, req, res));
  app.get('/refunds/by-key/:key', (req, res) => getRefundByKey(book, inWork, req.params.key, res));
  app.get('/payments/:id', (req, res) => {
    const payment = book.payment(req.params.id);
    if (payment !== undefined) res.json(payment);
    else sendError(res, 404, 'payment_not_found', `There is no payment ${req.params.id}.`);
  });
  app.post('/control', (req, res) => {
    const request = ControlRequest.safeParse(req.body);
    if (!request.success) return sendError(res, 400, 'invalid_request', z.prettifyError(request.error));
    dials.turn(request.data);
    res.json({ mode: request.data.mode });
  });
  app.use((req, res) => sendError(res, 404, 'route_not_found', `${req.method} ${req.path} is no route.`));
  app.use((error: Error & { status?: number }, _req: Request, res: Response, _next: NextFunction) => {
    if (error.status !== undefined) return sendError(res, error.status, 'invalid_request', error.message);
    process.stderr.write(`${error.stack ?? error.message}\n`);
    sendError(res, 500, 'internal', 'The provider failed; its standard error says why.');
  });
  return app;
}

interface RefundParts extends ProviderParts {
  /** The digest of the body that each key in work came with. */
  readonly inWork: Map<string, string>;
}

async function postRefund(parts: RefundParts, req: Request, res: Response): Promise<void> {
  const { journal, book, inWork } = parts;
  const key = req.get('idempotency-key') ?? null;
  journal.append({ kind: 'arrived', key, endpoint: 'refunds', subject: textAt(req.body, 'payment_id') });
  const refuse = (status: number, code: string, message: string): void => {
    journal.append({ kind: 'refused', key, endpoint: 'refunds', status, code, message, digest: null });
    sendError(res, status, code, message);
  };

  if (key === null || !KEY_FORM.test(key)) {
    return refuse(400, 'key_missing', 'Send an Idempotency-Key header of 1 to 255 printable characters.');
  }
  const parsed = RefundRequest.safeParse(req.body);
  if (!parsed.success) return refuse(400, 'invalid_request', z.prettifyError(parsed.error));
  const digest = digestOf(parsed.data);
  const kept = book.answerTo(key);
  const digestBefore = kept?.digest ?? inWork.get(key);
  if (digestBefore !== undefined && digestBefore !== digest) {
    return refuse(409, 'key_conflict', 'This key came with another body before. Nothing was done.');
  }
  if (kept !== undefined) {
    journal.append({ kind: 'replayed', key });
    res.set('Idempotent-Replayed', 'true');
    res.status(kept.status === 201 ? 200 : kept.status).json(kept.body);
    return;
  }
  if (digestBefore !== undefined) {
    res.set('Retry-After', '1');
    return refuse(409, 'key_in_progress', 'This key is in work. Ask again with the same key.');
  }
  inWork.set(key, digest);
  try {
    await workOnRefund(parts, { key, digest, request: parsed.data }, res);
  } finally {
    inWork.delete(key);
  }
}

async function workOnRefund(
  { journal, book, dials, inWork }: RefundParts,
  { key, digest, request }: { key: string; digest: string; request: RefundRequest },
  res: Response,
): Promise<void> {
  const bite = dials.bite('refunds', request.payment_id);
  await bite.released;
  if (bite.mode === 'error_500_before_commit')
    return sendUnfinished(journal, { key, endpoint: 'refunds' }, res);

  const record = (entry: NewEntry): JournalEntry => {
    const written = journal.append(entry);
    book.record(written);
    return written;
  };
  const refusal = book.refusalOf(request);
  if (refusal !== undefined) record({ kind: 'refused', key, endpoint: 'refunds', digest, ...refusal });
  else record({ kind: 'applied', key, digest, refund_id: refundIdOf(key), ...request });
  // From here on the key has its answer, whatever becomes of this connection.
  inWork.delete(key);

  const answer = book.answerTo(key);
  if (answer === undefined) throw new Error(`bug: ${key} was settled and has no answer`);
  await sendAs(bite, res, answer.status, answer.body);
}

async function postMail({ journal, dials }: ProviderParts, req: Request, res: Response): Promise<void> {
  // The sender's name for the mail is written down for whoever compares later. It stops no second mail.
  const key = req.get('idempotency-key') ?? null;
  journal.append({ kind: 'arrived', key, endpoint: 'mail', subject: textAt(req.body, 'to') });
  const parsed = MailRequest.safeParse(req.body);
  if (!parsed.success) {
    const message = z.prettifyError(parsed.error);
    const refusal = { status: 400, code: 'invalid_request', message, digest: null };
    journal.append({ kind: 'refused', key, endpoint: 'mail', ...refusal });
    return sendError(res, 400, refusal.code, message);
  }
  const { to, subject } = parsed.data;
  const bite = dials.bite('mail', to);
  await bite.released;
  if (bite.mode === 'error_500_before_commit') return sendUnfinished(journal, { key, endpoint: 'mail' }, res);
  const messageId = `msg_${randomUUID()}`;
  journal.append({ kind: 'mail_sent', key, message_id: messageId, to, subject });
  await sendAs(bite, res, 202, { message_id: messageId, status: 'sent' });
}

function getRefundByKey(book: Book, inWork: ReadonlyMap<string, string>, key: string, res: Response): void {
  const kept = book.answerTo(key);
  if (kept?.status === 201) {
    res.json(kept.body);
  } else if (kept !== undefined) {
    sendError(res, 404, 'key_refused', `Nothing was refunded under ${key}: it was refused for good.`);
  } else if (inWork.has(key)) {
    res.set('Retry-After', '1');
    sendError(res, 409, 'key_in_progress', `${key} is in work. Ask again.`);
  } else {
    sendError(res, 404, 'key_unknown', `Nothing was refunded under ${key}.`);
  }
}

/** Gives the answer the way the dial says: late, as a server error, or not at all. */
async function sendAs(bite: Bite, res: Response, status: number, body: object): Promise<void> {
  if (bite.mode === 'late') await delay(bite.delayMs);
  if (bite.mode === 'commit_then_drop') {
    res.socket?.destroy();
  } else if (bite.mode === 'error_500_after_commit') {
    sendError(res, 500, 'internal', 'The provider failed. Whether the request was carried out is not said.');
  } else {
    res.status(status).json(body);
  }
}

/** Answers 500 for work that was never begun; the key stays free. */
function sendUnfinished(
  journal: Journal,
  { key, endpoint }: { key: string | null; endpoint: 'refunds' | 'mail' },
  res: Response,
): void {
  const message = 'The provider failed. Whether the request was carried out is not said.';
  journal.append({ kind: 'refused', key, endpoint, status: 500, code: 'internal', message, digest: null });
  sendError(res, 500, 'internal', message);
}

/** One text field of a body that nobody has checked yet, cut to what a journal line should hold. */
function textAt(body: unknown, field: string): string | null {
  const fields = z.record(z.string(), z.unknown()).safeParse(body);
  const value = fields.success ? fields.data[field] : undefined;
  return typeof value === 'string' ? value.slice(0, 200) : null;
}

function sendError(res: Response, status: number, code: string, message: string): void {
  res.status(status).json({ error: { code, message } });
}

/** Made of the key, so that the name of a refund survives a crash between deed and answer. */
function refundIdOf(key: string): string {
  return `rfd_${createHash('sha256').update(key).digest('hex').slice(0, 20)}`;
}
