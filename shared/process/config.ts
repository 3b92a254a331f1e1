import { join, resolve } from 'node:path';
import { z } from 'zod';
import { StartError } from './exit.js';
import { LOG_LEVELS } from './log-levels.js';
import type { LogLevel } from './log-levels.js';
import { type AllowEntry, parseAllowEntry } from './address-guard.js';
import { readTemporalSettings } from './temporal-config.js';
import type { TemporalSettings } from './temporal-config.js';
import { createSecretKeys, type SecretKeys } from './webhook-secrets.js';

/** Everything a process is told from outside, checked. Nothing but entry points reads the environment. */
export interface HoldfastConfig {
  /** A Postgres to use instead of our own; null starts ours. May hold a password: never log it. */
  readonly databaseUrl: string | null;
  readonly temporal: TemporalSettings;
  /** Absolute path of the folder that holds the development servers' data. */
  readonly dataDir: string;
  /** Absolute path of the project file that names agents and tools. */
  readonly project: string;
  readonly api: { readonly host: string; readonly port: number };
  /** Port of our own Postgres; 0 takes any free one. */
  readonly postgresPort: number;
  /** Port of our own Temporal server; 0 takes any free one. */
  readonly temporalPort: number;
  /** Port of our own Temporal Web UI; 0 takes any free one. */
  readonly temporalUiPort: number;
  readonly taskQueue: string;
  /** How often an activity in flight says that it lives, in seconds. */
  readonly heartbeatSeconds: number;
  /** How many days the events of an ended run are kept; 0 keeps them for ever. */
  readonly keepEventsDays: number;
  readonly logLevel: LogLevel;
  /** What seals and opens the secrets of webhooks; null: this process can do neither. */
  readonly secretKeys: SecretKeys | null;
  /** Private places, and such without TLS, that webhooks may go to. */
  readonly webhookAllow: readonly AllowEntry[];
  readonly binaries: BinarySearch;
}

/** Where to look for the Temporal programs that npm does not carry. */
export interface BinarySearch {
  /** HOLDFAST_TEMPORAL_CLI: this `temporal` and no other. */
  readonly temporalCli: string | null;
  /** HOLDFAST_TEMPORAL_TEST_SERVER: this time-skipping server and no other. */
  readonly temporalTestServer: string | null;
  /** The PATH that is searched for `temporal`. */
  readonly searchPath: string;
  /** Folders that may keep downloaded programs, best first; the first that can be written is used. */
  readonly cacheFolders: readonly string[];
}

/**
 * Checks the settings in `env` and fills in the defaults. Empty values count as unset.
 *
 * @throws StartError with one line for every bad value at once, each saying what to set instead
 */
export function readConfig(env: Readonly<Record<string, string | undefined>>): HoldfastConfig {
  const problems: string[] = [];
  const given = Object.fromEntries(Object.entries(env).filter(([, value]) => value !== ''));
  const parsed = SETTINGS.safeParse(given);
  if (!parsed.success) {
    const names = new Set(parsed.error.issues.map((issue) => issue.path[0] as SettingName));
    for (const name of names) problems.push(describeProblem(name, given[name] ?? ''));
  }
  let temporal: TemporalSettings | null = null;
  try {
    temporal = readTemporalSettings(env);
  } catch (error) {
    problems.push(error instanceof Error ? error.message : String(error));
  }
  if (parsed.success) problems.push(...sharedPorts(parsed.data));
  if (!parsed.success || !temporal || problems.length > 0) throw new StartError(problems);
  return toConfig(parsed.data, temporal, env);
}

/** The settings of a process that cannot start servers of its own: both addresses are there. */
export interface ConnectedConfig extends HoldfastConfig {
  readonly databaseUrl: string;
  readonly temporal: TemporalSettings & {
    readonly connection: NonNullable<TemporalSettings['connection']>;
  };
}

/** Narrows a configuration for the worker and the API, which connect to servers and start none. */
export function requireServers(config: HoldfastConfig): ConnectedConfig {
  const problems: string[] = [];
  if (!config.databaseUrl) {
    problems.push('DATABASE_URL is not set. Set it to the Postgres of the ledger, or use npm start.');
  }
  if (!config.temporal.connection) {
    problems.push('TEMPORAL_ADDRESS is not set. Set it to host:port of Temporal, or use npm start.');
  }
  if (problems.length > 0) throw new StartError(problems);
  return config as ConnectedConfig;
}

const port = (fallback: number) =>
  z
    .string()
    .regex(/^\d{1,5}$/)
    .transform(Number)
    .pipe(z.int().max(65_535))
    .default(fallback);

const SETTINGS = z.object({
  DATABASE_URL: z.url({ protocol: /^postgres(ql)?$/ }).optional(),
  HOLDFAST_DATA_DIR: z.string().default('.holdfast'),
  HOLDFAST_PROJECT: z.string().default('examples/refund-desk/holdfast.yaml'),
  HOLDFAST_API_HOST: z.union([z.ipv4(), z.ipv6(), z.literal('localhost')]).default('127.0.0.1'),
  HOLDFAST_API_PORT: port(8321),
  HOLDFAST_POSTGRES_PORT: port(8322),
  HOLDFAST_TEMPORAL_PORT: port(7233),
  HOLDFAST_TEMPORAL_UI_PORT: port(8233),
  HOLDFAST_TASK_QUEUE: z
    .string()
    .regex(/^[\w.-]{1,100}$/)
    .default('holdfast'),
  HOLDFAST_HEARTBEAT_SECONDS: z
    .string()
    .regex(/^\d{1,3}$/)
    .transform(Number)
    .pipe(z.int().min(1).max(300))
    .default(10),
  HOLDFAST_KEEP_EVENTS_DAYS: z
    .string()
    .regex(/^\d{1,5}$/)
    .transform(Number)
    .default(0),
  HOLDFAST_LOG_LEVEL: z.enum(LOG_LEVELS).default('info'),
  HOLDFAST_SECRET_KEY: z
    .string()
    .transform((text) => text.split(',').map((part) => Buffer.from(part.trim(), 'base64')))
    .refine((keys) => keys.every((key) => key.length === 32))
    .optional(),
  HOLDFAST_WEBHOOK_ALLOW: z
    .string()
    .default('')
    .transform((text) => text.split(',').filter((part) => part.trim() !== ''))
    .transform((parts) => parts.map(parseAllowEntry))
    .refine((entries): entries is AllowEntry[] => entries.every((entry) => typeof entry !== 'string')),
  HOLDFAST_TEMPORAL_CLI: z.string().optional(),
  HOLDFAST_TEMPORAL_TEST_SERVER: z.string().optional(),
});

type Settings = z.infer<typeof SETTINGS>;
type SettingName = keyof Settings;

const A_PORT = 'a whole number from 0 to 65535 (0 takes any free port)';

/** What each setting may be, in the words of its error line. */
const WANTED: Readonly<Record<SettingName, string>> = {
  DATABASE_URL: 'a URL such as postgres://user:password@127.0.0.1:5432/holdfast',
  HOLDFAST_DATA_DIR: 'a folder',
  HOLDFAST_PROJECT: 'a project file',
  HOLDFAST_API_HOST: 'an IP address to listen on, such as 127.0.0.1',
  HOLDFAST_API_PORT: A_PORT,
  HOLDFAST_POSTGRES_PORT: A_PORT,
  HOLDFAST_TEMPORAL_PORT: A_PORT,
  HOLDFAST_TEMPORAL_UI_PORT: A_PORT,
  HOLDFAST_TASK_QUEUE: '1 to 100 letters, digits, dots, dashes or underscores',
  HOLDFAST_HEARTBEAT_SECONDS: 'a whole number of seconds from 1 to 300',
  HOLDFAST_KEEP_EVENTS_DAYS: 'a whole number of days (0 keeps the events of ended runs for ever)',
  HOLDFAST_LOG_LEVEL: `one of ${LOG_LEVELS.join(', ')}`,
  HOLDFAST_SECRET_KEY:
    '32 random bytes in base64, or several such keys with commas between, the newest first',
  HOLDFAST_WEBHOOK_ALLOW: 'places such as hooks.internal:443, 10.0.0.0/8:443 with commas between',
  HOLDFAST_TEMPORAL_CLI: 'the path of a temporal program',
  HOLDFAST_TEMPORAL_TEST_SERVER: 'the path of a temporal-test-server program',
};

function describeProblem(name: SettingName, value: string): string {
  // These hold secrets, and what is refused is printed on a terminal or in a CI log.
  const hidden: Partial<Record<SettingName, string>> = {
    DATABASE_URL: 'not a Postgres URL',
    HOLDFAST_SECRET_KEY: 'no key',
  };
  const shown = hidden[name] ?? JSON.stringify(value);
  return `${name} is ${shown}. Set it to ${WANTED[name]}, or unset it.`;
}

const PORT_NAMES = [
  'HOLDFAST_API_PORT',
  'HOLDFAST_POSTGRES_PORT',
  'HOLDFAST_TEMPORAL_PORT',
  'HOLDFAST_TEMPORAL_UI_PORT',
] as const;

function sharedPorts(settings: Settings): string[] {
  const problems: string[] = [];
  PORT_NAMES.forEach((name, index) => {
    const other = PORT_NAMES.slice(0, index).find((earlier) => settings[earlier] === settings[name]);
    if (!other || settings[name] === 0) return;
    problems.push(`${name} and ${other} are both ${settings[name]}. Give each a port of its own.`);
  });
  return problems;
}

function toConfig(
  settings: Settings,
  temporal: TemporalSettings,
  env: Readonly<Record<string, string | undefined>>,
): HoldfastConfig {
  const dataDir = resolve(settings.HOLDFAST_DATA_DIR);
  const userCache = env['XDG_CACHE_HOME'] || (env['HOME'] ? join(env['HOME'], '.cache') : null);
  return {
    databaseUrl: settings.DATABASE_URL ?? null,
    temporal,
    dataDir,
    project: resolve(settings.HOLDFAST_PROJECT),
    api: { host: settings.HOLDFAST_API_HOST, port: settings.HOLDFAST_API_PORT },
    postgresPort: settings.HOLDFAST_POSTGRES_PORT,
    temporalPort: settings.HOLDFAST_TEMPORAL_PORT,
    temporalUiPort: settings.HOLDFAST_TEMPORAL_UI_PORT,
    taskQueue: settings.HOLDFAST_TASK_QUEUE,
    heartbeatSeconds: settings.HOLDFAST_HEARTBEAT_SECONDS,
    keepEventsDays: settings.HOLDFAST_KEEP_EVENTS_DAYS,
    logLevel: settings.HOLDFAST_LOG_LEVEL,
    secretKeys:
      settings.HOLDFAST_SECRET_KEY === undefined ? null : createSecretKeys(settings.HOLDFAST_SECRET_KEY),
    webhookAllow: settings.HOLDFAST_WEBHOOK_ALLOW,
    binaries: {
      temporalCli: settings.HOLDFAST_TEMPORAL_CLI ?? null,
      temporalTestServer: settings.HOLDFAST_TEMPORAL_TEST_SERVER ?? null,
      searchPath: env['PATH'] ?? '',
      cacheFolders: [...(userCache ? [join(userCache, 'holdfast')] : []), join(dataDir, 'cache')],
    },
  };
}
