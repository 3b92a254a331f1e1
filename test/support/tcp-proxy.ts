import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { afterAll } from 'vitest';

/** Which way bytes go: `to_target` is what clients send, `to_client` what the target answers. */
export type Direction = 'to_target' | 'to_client';

/** A TCP way to a server whose faults a test chooses while it is in use. It passes everything at first. */
export interface TcpProxy {
  readonly port: number;
  /** `host:port`, for what takes an address. */
  readonly address: string;
  /** The same URL by way of the proxy. */
  via(url: string): string;
  /** Accepts and forwards again; what a black hole held back arrives now, as after a network that healed. */
  pass(): Promise<void>;
  /** New connections are refused as where nobody listens; open ones go on (`resetAll` ends them). */
  refuse(): Promise<void>;
  /** Bytes of this direction, and its end, stop arriving on every connection, old or new, and nobody is told. */
  blackhole(direction: Direction | 'both'): void;
  /** Resets every open connection, on both sides. What was held back is lost. */
  resetAll(): void;
  /**
   * Lets every request that holds `bytes` through and resets its connection in place of the answer, `times` times.
   * The target has done what it was asked: for Postgres, the name of a prepared statement finds its commit.
   */
  cutReplyAfter(bytes: string, times?: number): void;
  /** Answers cut so far. */
  readonly cuts: number;
  /** Connections open now. */
  readonly connections: number;
  /** Ends everything. May be called again; the end of the test file does it too. */
  close(): Promise<void>;
}

/** A proxy on a free port of 127.0.0.1. `target` is a URL with a port, or `host:port`. */
export async function startTcpProxy(target: string): Promise<TcpProxy> {
  const { hostname, port: targetPort } = new URL(target.includes('://') ? target : `tcp://${target}`);
  const links = new Set<Link>();
  const held: Record<Direction, boolean> = { to_target: false, to_client: false };
  const cut = { bytes: Buffer.alloc(0), left: 0, done: 0 };
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (near) => {
    const far = connect({ host: hostname, port: Number(targetPort), allowHalfOpen: true, noDelay: true });
    const link = new Link(near, far, cut);
    links.add(link);
    for (const socket of [near, far]) socket.on('close', () => links.delete(link));
    link.hold(held);
  });
  const listen = (wanted: number): Promise<void> =>
    new Promise((resolve, reject) => {
      server.once('error', reject);
      server.listen(wanted, '127.0.0.1', () => resolve());
    });
  await listen(0);
  const { port } = server.address() as AddressInfo;
  const stopListening = async (): Promise<void> => {
    // Its callback waits for open connections; that it listens no more is true at once.
    if (server.listening) server.close();
    await Promise.resolve();
  };
  const hold = (direction: Direction | 'both', on: boolean): void => {
    if (direction !== 'to_client') held.to_target = on;
    if (direction !== 'to_target') held.to_client = on;
    for (const link of links) link.hold(held);
  };
  const resetAll = (): void => {
    for (const link of links) link.reset();
    links.clear();
  };
  const proxy: TcpProxy = {
    port,
    address: `127.0.0.1:${port}`,
    via: (url) => {
      const changed = new URL(url);
      changed.hostname = '127.0.0.1';
      changed.port = String(port);
      return changed.href;
    },
    pass: async () => {
      hold('both', false);
      if (!server.listening) await listen(port);
    },
    refuse: stopListening,
    blackhole: (direction) => hold(direction, true),
    resetAll,
    cutReplyAfter: (bytes, times = 1) => {
      cut.bytes = Buffer.from(bytes);
      cut.left = times;
    },
    get cuts() {
      return cut.done;
    },
    get connections() {
      return links.size;
    },
    close: async () => {
      open.delete(proxy);
      await stopListening();
      resetAll();
    },
  };
  open.add(proxy);
  return proxy;
}

/** One client's connection and ours to the target. */
class Link {
  readonly #near: Socket;
  readonly #far: Socket;
  readonly #cut: { readonly bytes: Buffer; left: number; done: number };
  /** The end of what was sent last, since a request may arrive in pieces. */
  #sent = Buffer.alloc(0);
  #cutsReply = false;

  constructor(near: Socket, far: Socket, cut: { readonly bytes: Buffer; left: number; done: number }) {
    this.#near = near;
    this.#far = far;
    this.#cut = cut;
    near.on('data', (bytes: Buffer) => this.#forward(bytes)).on('end', () => far.end());
    far.on('data', (bytes: Buffer) => this.#answer(bytes)).on('end', () => near.end());
    near.on('error', () => far.resetAndDestroy()).on('close', () => far.destroySoon());
    far.on('error', () => near.resetAndDestroy()).on('close', () => near.destroySoon());
  }

  /** A paused socket reads neither bytes nor the end of the stream. */
  hold(held: Readonly<Record<Direction, boolean>>): void {
    if (held.to_target) this.#near.pause();
    else this.#near.resume();
    if (held.to_client) this.#far.pause();
    else this.#far.resume();
  }

  reset(): void {
    this.#near.resetAndDestroy();
    this.#far.resetAndDestroy();
  }

  #forward(bytes: Buffer): void {
    if (this.#cut.left > 0) {
      this.#sent = Buffer.concat([this.#sent, bytes]);
      if (this.#sent.includes(this.#cut.bytes)) {
        this.#cut.left -= 1;
        this.#cutsReply = true;
        this.#sent = Buffer.alloc(0);
      } else {
        this.#sent = this.#sent.subarray(-this.#cut.bytes.length);
      }
    }
    this.#far.write(bytes);
  }

  #answer(bytes: Buffer): void {
    if (!this.#cutsReply) {
      this.#near.write(bytes);
      return;
    }
    this.#cut.done += 1;
    this.reset();
  }
}

const open = new Set<TcpProxy>();

afterAll(async () => {
  for (const proxy of open) await proxy.close();
});
