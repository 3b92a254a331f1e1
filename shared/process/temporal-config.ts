import { loadClientConnectConfig } from '@temporalio/envconfig';

type Environment = Readonly<Record<string, string | undefined>>;
type Loaded = ReturnType<typeof loadClientConnectConfig>['connectionOptions'];

/**
 * How to reach Temporal: spread into the options of a client's `Connection` or a worker's
 * `NativeConnection`.
 */
export interface TemporalConnection {
  readonly address: string;
  readonly tls?: NonNullable<Loaded['tls']>;
  readonly apiKey?: string;
  readonly metadata?: Record<string, string>;
}

/**
 * What the environment says about Temporal. `connection` is null when it names no server, so ours is
 * used.
 */
export interface TemporalSettings {
  readonly connection: TemporalConnection | null;
  readonly namespace: string;
}

/**
 * Names that only make sense next to an address: alone they would be sent to our own server, which
 * takes none.
 */
const NEEDS_ADDRESS = ['TEMPORAL_API_KEY', 'TEMPORAL_TLS', 'TEMPORAL_TLS_CLIENT_CERT_PATH'] as const;

/**
 * Reads Temporal's own environment names (address, namespace, TLS, API key, gRPC headers) by Temporal's
 * own rules.
 *
 * The configuration file is read only when TEMPORAL_CONFIG_FILE or TEMPORAL_PROFILE asks for it: a
 * profile that lies about for the `temporal` command must not point a development stack at a cloud.
 *
 * @throws Error with one line that says which setting is wrong
 */
export function readTemporalSettings(env: Environment): TemporalSettings {
  const wantsFile = Boolean(env['TEMPORAL_CONFIG_FILE'] ?? env['TEMPORAL_PROFILE']);
  const loaded = loadClientConnectConfig({ overrideEnvVars: withoutEmpty(env), disableFile: !wantsFile });
  const namespace = loaded.namespace ?? 'default';
  const { address, tls, apiKey, metadata } = loaded.connectionOptions;
  if (!address) {
    const alone = NEEDS_ADDRESS.find((name) => env[name]);
    if (alone) {
      throw new Error(
        `${alone} is set but TEMPORAL_ADDRESS is not. Set TEMPORAL_ADDRESS to host:port, or unset ${alone}.`,
      );
    }
    return { connection: null, namespace };
  }
  if (!/^[^\s/]+:\d{1,5}$/.test(address)) {
    throw new Error(`TEMPORAL_ADDRESS is "${address}". Set it to host:port, such as temporal.example:7233.`);
  }
  const headers = plainHeaders(metadata);
  return {
    namespace,
    connection: {
      address,
      ...(tls ? { tls } : {}),
      ...(typeof apiKey === 'string' ? { apiKey } : {}),
      ...(headers ? { metadata: headers } : {}),
    },
  };
}

function plainHeaders(metadata: Loaded['metadata']): Record<string, string> | undefined {
  if (!metadata) return undefined;
  return Object.fromEntries(
    Object.entries(metadata).filter(([, value]) => typeof value === 'string'),
  ) as Record<string, string>;
}

function withoutEmpty(env: Environment): Record<string, string> {
  return Object.fromEntries(
    Object.entries(env).filter((entry): entry is [string, string] => Boolean(entry[1])),
  );
}
