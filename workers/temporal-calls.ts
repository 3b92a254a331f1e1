import { isGrpcServiceError, ScheduleNotFoundError } from '@temporalio/client';

/**
 * Longest a call to Temporal may take, its client's own retries included: without it one that meets silence takes as
 * long as the connection lives. What is given up may have been done all the same; the next round sees.
 */
export const TEMPORAL_CALL_MS = 10_000;

/** gRPC's codes for a request that is wrong in itself, and for one that names nothing. */
const INVALID_ARGUMENT = 3;
const NOT_FOUND = 5;

/** Whether a call failed for what it asked, so that the next one's may go through; otherwise Temporal is away. */
export function isRefusedByTemporal(error: unknown): boolean {
  const code = grpcCodeOf(error);
  if (code !== undefined) return code === INVALID_ARGUMENT;
  const cause = causeOf(error);
  return cause instanceof TypeError || cause instanceof RangeError;
}

/** Whether Temporal knows nothing of what a call named. */
export function isUnknownToTemporal(error: unknown): boolean {
  return error instanceof ScheduleNotFoundError || grpcCodeOf(error) === NOT_FOUND;
}

function causeOf(error: unknown): unknown {
  return error instanceof Error ? (error.cause ?? error) : error;
}

function grpcCodeOf(error: unknown): number | undefined {
  const cause = causeOf(error);
  return isGrpcServiceError(cause) ? Number(cause.code) : undefined;
}
