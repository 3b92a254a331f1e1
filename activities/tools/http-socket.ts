import { lookup } from 'node:dns/promises';
import { connect as connectTcp, isIP } from 'node:net';
import type { Socket } from 'node:net';
import { checkServerIdentity, connect as connectTls } from 'node:tls';
import type { PeerCertificate } from 'node:tls';
import { hostOf } from '../../shared/process/address-guard.js';
import type { AddressGuard } from '../../shared/process/address-guard.js';
import type { NotSentReason } from './reasons.js';

/** An address that a host name stands for. */
export interface ResolvedAddress {
  readonly address: string;
}

/** Finds the addresses of a host name; the system's resolver unless a test hands in another. */
export type ResolveHost = (hostname: string) => Promise<readonly ResolvedAddress[]>;

/** A connection that is ready for its first byte, or the proof that none left. */
export type OpenedSocket =
  | { readonly kind: 'open'; readonly socket: Socket }
  | { readonly kind: 'not_sent'; readonly reason: NotSentReason };

/** What the connecting half of a call needs. */
export interface OpenSocketOptions {
  readonly guard: AddressGuard;
  readonly connectTimeoutMs: number;
  /** Aborts when the whole call is given up. */
  readonly signal: AbortSignal;
  readonly resolve?: ResolveHost;
}

/**
 * Connects to a URL's host, TLS handshake included, and sends nothing.
 *
 * Connecting is apart from asking so that "not sent" is a fact: whatever fails in here happened before
 * the first byte of a request. The name is resolved once, each address is judged, and the connection is
 * made to a judged address, so a second answer of the resolver cannot lead elsewhere.
 */
export async function openSocket(url: URL, options: OpenSocketOptions): Promise<OpenedSocket> {
  const port = portOf(url);
  const hostname = hostOf(url.hostname);
  if (!options.guard.allowsHost(hostname, port)) return notSent('host_not_allowed');
  const timeout = AbortSignal.timeout(Math.ceil(options.connectTimeoutMs));
  const signal = AbortSignal.any([options.signal, timeout]);
  const addresses = await resolveHost(hostname, signal, options.resolve ?? lookUpAll);
  if (typeof addresses === 'string') return notSent(gaveUp(options.signal, timeout) ?? addresses);
  const allowed = addresses.filter(({ address }) => options.guard.allowsAddress(address, hostname, port));
  if (allowed.length === 0) return notSent('address_not_allowed');
  let reason: NotSentReason = 'network_unreachable';
  // One after the other: nothing is sent before one is open, so trying the next repeats nothing.
  for (const { address } of allowed) {
    const opened = await connectTo({ url, address, port, hostname }, signal);
    if (typeof opened !== 'string') return { kind: 'open', socket: opened };
    reason = opened;
    if (signal.aborted) break;
  }
  return notSent(gaveUp(options.signal, timeout) ?? reason);
}

/** The port a URL means. */
export function portOf(url: URL): number {
  if (url.port !== '') return Number(url.port);
  return url.protocol === 'https:' ? 443 : 80;
}

function gaveUp(call: AbortSignal, timeout: AbortSignal): NotSentReason | null {
  if (call.aborted) return 'aborted_before_send';
  return timeout.aborted ? 'connect_timed_out' : null;
}

function notSent(reason: NotSentReason): OpenedSocket {
  return { kind: 'not_sent', reason };
}

async function lookUpAll(hostname: string): Promise<readonly ResolvedAddress[]> {
  return lookup(hostname, { all: true, verbatim: true });
}

async function resolveHost(
  hostname: string,
  signal: AbortSignal,
  resolve: ResolveHost,
): Promise<readonly ResolvedAddress[] | NotSentReason> {
  if (isIP(hostname) !== 0) return [{ address: hostname }];
  // The system's resolver cannot be aborted; its late answer is dropped.
  const aborted = new Promise<NotSentReason>((settle) => {
    const onAbort = () => {
      settle('dns_failed');
    };
    if (signal.aborted) onAbort();
    else signal.addEventListener('abort', onAbort, { once: true });
  });
  const resolved = resolve(hostname).then(
    (addresses): readonly ResolvedAddress[] | NotSentReason =>
      addresses.length === 0 ? 'dns_failed' : addresses,
    (): NotSentReason => 'dns_failed',
  );
  return Promise.race([resolved, aborted]);
}

function connectTo(
  target: { url: URL; address: string; port: number; hostname: string },
  signal: AbortSignal,
): Promise<Socket | NotSentReason> {
  const { address, port, hostname } = target;
  const isTls = target.url.protocol === 'https:';
  // SNI carries names only; an address is checked against the certificate as an address.
  const servername = isIP(hostname) === 0 ? hostname : '';
  const socket = isTls
    ? connectTls({ host: address, port, servername, checkServerIdentity: identityOf(hostname) })
    : connectTcp({ host: address, port });
  let isTcpUp = false;
  return new Promise((resolve) => {
    const settle = (result: Socket | NotSentReason) => {
      signal.removeEventListener('abort', onAbort);
      if (typeof result === 'string') socket.destroy();
      resolve(result);
    };
    const onAbort = () => {
      settle('connect_timed_out');
    };
    // Stays on for the socket's life: an error after the answer has nobody else to hear it.
    socket.on('error', (error: NodeJS.ErrnoException) => {
      settle(isTcpUp ? 'tls_failed' : connectFailure(error.code));
    });
    socket.once('close', () => {
      settle(isTcpUp ? 'tls_failed' : 'network_unreachable');
    });
    socket.once('connect', () => {
      isTcpUp = true;
      if (!isTls) settle(socket);
    });
    if (isTls) {
      socket.once('secureConnect', () => {
        settle(socket);
      });
    }
    if (signal.aborted) onAbort();
    else signal.addEventListener('abort', onAbort, { once: true });
  });
}

/** The certificate must be the named host's; the connection itself goes to an address. */
function identityOf(hostname: string) {
  return (_address: string, certificate: PeerCertificate) => checkServerIdentity(hostname, certificate);
}

function connectFailure(code: string | undefined): NotSentReason {
  return code === 'ECONNREFUSED' ? 'connection_refused' : 'network_unreachable';
}
