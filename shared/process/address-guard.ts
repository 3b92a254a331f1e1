import { BlockList, isIP } from 'node:net';

/**
 * Address ranges that no tool reaches unless its `allow` list names them: this machine, private and
 * link-local networks (cloud metadata lives there), and everything that is not a public unicast host.
 */
const GUARDED_V4: readonly (readonly [string, number])[] = [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.0.2.0', 24],
  ['192.88.99.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['224.0.0.0', 3],
];
// Only 2000::/3 is public unicast; inside it, documentation, benchmarking, Teredo and 6to4 are not.
const PUBLIC_V6: readonly [string, number] = ['2000::', 3];
const GUARDED_V6: readonly (readonly [string, number])[] = [
  ['2001::', 23],
  ['2001:db8::', 32],
  ['2002::', 16],
  ['3fff::', 20],
];

/** One entry of an `allow` list, parsed. */
export interface AllowEntry {
  /** Null for every port. */
  readonly port: number | null;
  /** Lower-case host name or `*.suffix`; null where the entry names addresses. */
  readonly name: string | null;
  /** The addresses the entry names; null where it names a host. */
  readonly addresses: BlockList | null;
}

/** Where a tool may connect to. */
export interface AddressGuard {
  /** Whether the list lets the tool ask for this host at all, by name or address. */
  allowsHost(hostname: string, port: number): boolean;
  /** Whether a connection to this resolved address is allowed. */
  allowsAddress(address: string, hostname: string, port: number): boolean;
}

/**
 * Builds the guard of one tool.
 *
 * A host is allowed when an entry matches it. The address it resolves to must be public, or named: by an
 * entry with that address or its network, or, for this machine, by the entry `localhost`. So a public
 * name that suddenly resolves to a private address is refused.
 */
export function createAddressGuard(entries: readonly AllowEntry[]): AddressGuard {
  const ofPort = (port: number) => entries.filter((entry) => entry.port === null || entry.port === port);
  const names = (address: string, port: number) =>
    ofPort(port).some((entry) => entry.addresses !== null && contains(entry.addresses, address));
  return {
    allowsHost(hostname, port) {
      const host = hostOf(hostname);
      if (isIP(host) !== 0 && names(host, port)) return true;
      return ofPort(port).some((entry) => entry.name !== null && matchesName(entry.name, host));
    },
    allowsAddress(address, hostname, port) {
      if (!isGuarded(address) || names(address, port)) return true;
      const namesThisMachine = ofPort(port).some((entry) => entry.name === 'localhost');
      return hostOf(hostname) === 'localhost' && namesThisMachine && isLoopback(address);
    },
  };
}

/**
 * Reads one entry: `host:port`, where host is a name, `*.suffix`, an address or a network such as
 * `10.0.0.0/8`, an IPv6 one in brackets, and port is a number or `*`. A text says what is wrong.
 */
export function parseAllowEntry(text: string): AllowEntry | string {
  const match = /^(\[[^\]]+\](?:\/\d{1,3})?|[^:[\]]+):(\d{1,5}|\*)$/.exec(text.trim());
  const [, hostText = '', portText = ''] = match ?? [];
  if (match === null) return `"${text}" is no host:port — write for example api.example.com:443`;
  const port = portText === '*' ? null : Number(portText);
  if (port !== null && (port < 1 || port > 65_535)) return `"${text}" has no port between 1 and 65535`;
  const [addressText = '', prefixText] = hostText.replace(/[[\]]/g, '').split('/');
  const family = isIP(addressText);
  if (family !== 0) {
    const bits = family === 4 ? 32 : 128;
    const prefix = prefixText === undefined ? bits : Number(prefixText);
    if (!(prefix >= 0 && prefix <= bits)) return `"${text}" has a network prefix over ${bits}`;
    const addresses = new BlockList();
    addresses.addSubnet(addressText, prefix, family === 4 ? 'ipv4' : 'ipv6');
    return { port, name: null, addresses };
  }
  const name = hostOf(hostText);
  if (!/^(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*$/.test(name)) {
    return `"${hostText}" is neither a host name nor an address — correct it`;
  }
  return { port, name, addresses: null };
}

/** A host as it is compared: lower case, without IPv6 brackets and without the root's final dot. */
export function hostOf(hostname: string): string {
  return hostname
    .toLowerCase()
    .replace(/^\[|\]$/g, '')
    .replace(/\.$/, '');
}

function isGuarded(address: string): boolean {
  const plain = unmapped(address);
  if (isIP(plain) === 4) return GUARDED.v4.check(plain, 'ipv4');
  return !GUARDED.publicV6.check(plain, 'ipv6') || GUARDED.v6.check(plain, 'ipv6');
}

function isLoopback(address: string): boolean {
  const plain = unmapped(address);
  return plain === '::1' || (isIP(plain) === 4 && plain.startsWith('127.'));
}

function contains(list: BlockList, address: string): boolean {
  const plain = unmapped(address);
  return list.check(plain, isIP(plain) === 4 ? 'ipv4' : 'ipv6');
}

/** `::ffff:a.b.c.d` in either spelling is the IPv4 address inside it. */
function unmapped(address: string): string {
  const plain = address.replace(/%.*$/, '').toLowerCase();
  const dotted = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/.exec(plain)?.[1];
  if (dotted !== undefined) return dotted;
  const hex = /^::ffff:([0-9a-f]{1,4}):([0-9a-f]{1,4})$/.exec(plain);
  if (hex === null) return plain;
  const [high = 0, low = 0] = [hex[1], hex[2]].map((part) => parseInt(part ?? '0', 16));
  return [high >> 8, high & 255, low >> 8, low & 255].join('.');
}

function matchesName(pattern: string, host: string): boolean {
  return pattern.startsWith('*.') ? host.endsWith(pattern.slice(1)) : host === pattern;
}

function listOf(ranges: readonly (readonly [string, number])[], family: 'ipv4' | 'ipv6'): BlockList {
  const list = new BlockList();
  for (const [network, prefix] of ranges) list.addSubnet(network, prefix, family);
  return list;
}

const GUARDED = {
  v4: listOf(GUARDED_V4, 'ipv4'),
  v6: listOf(GUARDED_V6, 'ipv6'),
  publicV6: listOf([PUBLIC_V6], 'ipv6'),
} as const;
