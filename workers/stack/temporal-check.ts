import { connect } from 'node:http2';
import type { Connection } from '@temporalio/client';
import type { TemporalConnection } from '../../shared/process/temporal-config.js';

/**
 * Asks Temporal for a namespace.
 *
 * @returns null when it answers, else in a few words why not
 */
export async function checkTemporal(
  connection: TemporalConnection,
  namespace: string,
  timeoutSeconds: number,
): Promise<string | null> {
  try {
    await withTemporal(connection, timeoutSeconds, (open) =>
      open.withDeadline(Date.now() + timeoutSeconds * 1000, () =>
        open.workflowService.describeNamespace({ namespace }),
      ),
    );
    return null;
  } catch (error) {
    return describe(error);
  }
}

/** Opens a connection for one piece of work and closes it, whatever comes of it. */
export async function withTemporal<T>(
  connection: TemporalConnection,
  timeoutSeconds: number,
  use: (open: Connection) => Promise<T>,
): Promise<T> {
  // Loaded only where it is needed: the supervisor of a development stack would keep its 30 MB for good.
  const client = await import('@temporalio/client');
  const open = await client.Connection.connect({ ...connection, connectTimeout: timeoutSeconds * 1000 });
  try {
    return await use(open);
  } finally {
    await open.close();
  }
}

/**
 * Asks a Temporal on this machine for a namespace: one plain gRPC call over HTTP/2, without the SDK and
 * without its second of waiting after a refused connection.
 *
 * @returns null when it answers, else in a few words why not
 */
export function probeLocalTemporal(address: string, namespace: string): Promise<string | null> {
  return new Promise((resolve) => {
    const session = connect(`http://${address}`);
    const finish = (problem: string | null): void => {
      session.destroy();
      resolve(problem);
    };
    session.once('error', (error) => finish(error.message));
    session.setTimeout(PROBE_SECONDS * 1000, () => finish(`no answer within ${PROBE_SECONDS} s`));
    const call = session.request({
      ':method': 'POST',
      ':path': '/temporal.api.workflowservice.v1.WorkflowService/DescribeNamespace',
      'content-type': 'application/grpc',
      te: 'trailers',
    });
    call.once('error', (error) => finish(error.message));
    const judge = (headers: Readonly<Record<string, unknown>>): void => {
      const status = headers['grpc-status'];
      if (status === undefined) return;
      finish(status === '0' ? null : `gRPC status ${String(status)}: ${String(headers['grpc-message'])}`);
    };
    // A refusal may come in the first headers, an answer's status stands in the trailers.
    call.on('response', judge);
    call.on('trailers', judge);
    call.resume();
    call.end(namespaceRequest(namespace));
  });
}

const PROBE_SECONDS = 5;

/** A gRPC frame (flag, length) around a protobuf message whose field 1 is the namespace. */
function namespaceRequest(namespace: string): Buffer {
  const name = Buffer.from(namespace);
  if (name.length > 127)
    throw new Error(`Namespace ${namespace} is longer than 127 bytes. Use a shorter one.`);
  const message = Buffer.concat([Buffer.from([0x0a, name.length]), name]);
  const head = Buffer.alloc(5);
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
}

function describe(error: unknown): string {
  const details = (error as { details?: unknown }).details;
  if (typeof details === 'string' && details) return details;
  return error instanceof Error ? error.message : String(error);
}
