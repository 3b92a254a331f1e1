/** Names one run as one tenant may see it: a run of another tenant is not there. */
export interface RunKey {
  readonly tenantId: string;
  readonly runId: string;
}

/** ISO 8601 in UTC with milliseconds, as every time leaves the ledger. */
export function isoTime(time: Date): string {
  return time.toISOString();
}

/** `isoTime` for what may not have happened yet. */
export function isoTimeOrNull(time: Date | null): string | null {
  return time === null ? null : time.toISOString();
}
