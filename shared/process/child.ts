/** What a child process tells its supervisor once it serves: sent over the IPC channel, exactly once. */
export interface ReadyMessage {
  readonly kind: 'ready';
  readonly role: 'worker' | 'api';
  /** Facts worth showing, such as the port or the task queue; no secrets. */
  readonly detail: Readonly<Record<string, string | number>>;
}

/**
 * Why a process was asked to stop. `supervisor_gone`: the IPC channel closed, so nobody would stop us
 * later.
 */
export type StopReason = 'SIGINT' | 'SIGTERM' | 'supervisor_gone';

/** Tells the supervisor that this process serves. Does nothing when the process was started by hand. */
export function announceReady(message: ReadyMessage): void {
  if (process.connected) process.send?.(message);
}

/**
 * Resolves when this process is asked to stop: by a signal, or because the supervisor that started it
 * is gone (killed with -9, say). A second signal ends the process at once with code 130: whoever sends
 * two wants no orderly end.
 */
export function untilAskedToStop(): Promise<StopReason> {
  return new Promise((resolve) => {
    let asked = false;
    const ask = (reason: StopReason): void => {
      if (asked && reason !== 'supervisor_gone') process.exit(130);
      asked = true;
      resolve(reason);
    };
    process.on('SIGINT', () => ask('SIGINT'));
    process.on('SIGTERM', () => ask('SIGTERM'));
    if (process.connected) process.once('disconnect', () => ask('supervisor_gone'));
  });
}

/** Whether a message from a child is its ready message; anything else on the channel is not ours. */
export function isReadyMessage(message: unknown): message is ReadyMessage {
  return typeof message === 'object' && message !== null && 'kind' in message && message.kind === 'ready';
}
