// Loaded into a worker before anything else: SIGUSR2 starts a CPU profile of every thread, the next one ends it and
// writes a file a thread into the folder BENCH_PROFILES. Plain JavaScript, since it loads before the TypeScript loader.
import { writeFileSync } from 'node:fs';
import { Session } from 'node:inspector';
import { join } from 'node:path';
import { BroadcastChannel, isMainThread, threadId } from 'node:worker_threads';

const folder = process.env.BENCH_PROFILES;
const channel = new BroadcastChannel('bench-profile');
channel.unref();
const session = new Session();
let profiling = false;

function toggle() {
  if (!profiling) {
    session.connect();
    session.post('Profiler.enable');
    session.post('Profiler.setSamplingInterval', { interval: 500 });
    session.post('Profiler.start');
  } else {
    session.post('Profiler.stop', (error, result) => {
      if (error) throw error;
      const thread = isMainThread ? 'main' : `thread${threadId}`;
      writeFileSync(join(folder, `${process.pid}.${thread}.cpuprofile`), JSON.stringify(result.profile));
    });
    session.disconnect();
  }
  profiling = !profiling;
}

channel.onmessage = toggle;
if (isMainThread) {
  process.on('SIGUSR2', () => {
    channel.postMessage('toggle');
    toggle();
  });
}
