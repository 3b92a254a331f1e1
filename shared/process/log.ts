import { pino } from 'pino';
import type { DestinationStream, Logger } from 'pino';
import type { LogLevel } from './log-levels.js';

/** A structured log: one JSON line an entry. */
export type { Logger } from 'pino';

/** Names of fields whose values never reach a log, wherever they stand up to `REDACT_DEPTH` levels down. */
export const REDACTED_FIELDS = [
  'authorization',
  'Authorization',
  'proxy-authorization',
  'cookie',
  'set-cookie',
  'x-api-key',
  'apiKey',
  'api_key',
  'accessToken',
  'refreshToken',
  'token',
  'password',
  'secret',
  'clientSecret',
  'databaseUrl',
  'connectionString',
] as const;

/** Enough for `req.headers.authorization` and `err.config.headers.authorization`. */
const REDACT_DEPTH = 4;

/**
 * Makes the log of one process or part: JSON lines on stdout with ISO times and level names, secrets
 * replaced by `[redacted]`. Written synchronously, so that the last line before a crash is not lost.
 */
export function createLogger(options: {
  /** Which part speaks: `worker`, `api`, `start`. */
  readonly name: string;
  readonly level: LogLevel;
  /** Where lines go; stdout unless given. */
  readonly destination?: DestinationStream;
}): Logger {
  const settings = {
    name: options.name,
    level: options.level,
    base: { pid: process.pid },
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label: string) => ({ level: label }) },
    redact: { paths: redactPaths(), censor: '[redacted]' },
  };
  return options.destination ? pino(settings, options.destination) : pino(settings);
}

/** Every place a secret field may stand in, in pino's path language. */
function redactPaths(): string[] {
  const paths: string[] = [];
  for (let depth = 0; depth < REDACT_DEPTH; depth += 1) {
    const above = Array<string>(depth).fill('*').join('.');
    for (const field of REDACTED_FIELDS) paths.push(`${above}["${field}"]`);
  }
  return paths;
}
