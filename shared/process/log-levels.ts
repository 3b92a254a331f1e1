/**
 * Levels a log can be set to, quietest first. Apart from log.ts, so that configuration does not load
 * pino.
 */
export const LOG_LEVELS = ['silent', 'fatal', 'error', 'warn', 'info', 'debug', 'trace'] as const;
/** One of `LOG_LEVELS`; lines below it are not written. */
export type LogLevel = (typeof LOG_LEVELS)[number];
