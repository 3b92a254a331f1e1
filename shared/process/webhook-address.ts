import { isIP } from 'node:net';
import { type AddressGuard, type AllowEntry, createAddressGuard, hostOf } from './address-guard.js';

/** What is wrong with an endpoint's URL; see `webhookUrlProblem`. */
export type WebhookUrlProblem = 'not_a_url' | 'not_https' | 'has_credentials' | 'address_not_allowed';

/**
 * Where webhooks may go: any public address; a private one, or one without TLS, only where HOLDFAST_WEBHOOK_ALLOW
 * names it.
 */
export function createWebhookGuard(allow: readonly AllowEntry[]): AddressGuard {
  const named = createAddressGuard(allow);
  return { allowsHost: () => true, allowsAddress: named.allowsAddress };
}

/**
 * Why a URL can be no endpoint, or null. Looks at the text alone: what a name stands for is judged at each try.
 */
export function webhookUrlProblem(text: string, allow: readonly AllowEntry[]): WebhookUrlProblem | null {
  if (!URL.canParse(text)) return 'not_a_url';
  const url = new URL(text);
  if (url.protocol !== 'https:' && url.protocol !== 'http:') return 'not_https';
  const port = url.port === '' ? (url.protocol === 'https:' ? 443 : 80) : Number(url.port);
  const host = hostOf(url.hostname);
  const guard = createAddressGuard(allow);
  if (url.protocol === 'http:' && !guard.allowsHost(host, port)) return 'not_https';
  if (url.username !== '' || url.password !== '') return 'has_credentials';
  if (isIP(host) !== 0 && !guard.allowsAddress(host, host, port)) return 'address_not_allowed';
  if (host === 'localhost' && !guard.allowsHost(host, port)) return 'address_not_allowed';
  return null;
}
