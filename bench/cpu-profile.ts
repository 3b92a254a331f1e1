import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Busy time of one thread's JavaScript, by where the code comes from. */
export interface ThreadProfile {
  readonly thread: string;
  readonly busyMs: number;
  readonly byOrigin: readonly (readonly [origin: string, ms: number])[];
  readonly byFunction: readonly (readonly [name: string, ms: number])[];
}

interface Profile {
  readonly nodes: readonly {
    readonly id: number;
    readonly callFrame: { readonly functionName: string; readonly url: string; readonly lineNumber: number };
    readonly children?: readonly number[];
  }[];
  readonly samples: readonly number[];
  readonly timeDeltas: readonly number[];
}

/** Reads the profiles that `profile-on-signal.mjs` wrote of one process. */
export async function readProfiles(folder: string, pid: number): Promise<ThreadProfile[]> {
  const names = (await readdir(folder)).filter(
    (name) => name.startsWith(`${pid}.`) && name.endsWith('.cpuprofile'),
  );
  const profiles = await Promise.all(
    names.map(async (name) => {
      const profile = JSON.parse(await readFile(join(folder, name), 'utf8')) as Profile;
      return analyse(name.split('.')[1] ?? '', profile);
    }),
  );
  return profiles.sort((a, b) => b.busyMs - a.busyMs);
}

function analyse(thread: string, profile: Profile): ThreadProfile {
  const byId = new Map(profile.nodes.map((node) => [node.id, node]));
  const parentOf = new Map(
    profile.nodes.flatMap((node) => (node.children ?? []).map((child) => [child, node.id])),
  );
  const origins = new Map<string, number>();
  const functions = new Map<string, number>();
  let busyMs = 0;
  const add = (to: Map<string, number>, name: string, ms: number): void =>
    void to.set(name, (to.get(name) ?? 0) + ms);
  profile.samples.forEach((id, index) => {
    const frame = byId.get(id)?.callFrame;
    const ms = (profile.timeDeltas[index] ?? 0) / 1000;
    if (frame === undefined || frame.functionName === '(idle)') return;
    busyMs += ms;
    // Time inside Node's own code belongs to whoever called it.
    let at: number | undefined = id;
    let origin = originOf(frame.functionName, frame.url);
    while (origin === null && at !== undefined) {
      at = parentOf.get(at);
      const above = at === undefined ? undefined : byId.get(at)?.callFrame;
      origin = above === undefined ? 'node' : originOf(above.functionName, above.url);
    }
    add(origins, origin ?? 'node', ms);
    add(functions, `${frame.functionName || '(anonymous)'} ${shortUrl(frame.url)}`.trim(), ms);
  });
  const top = (of: Map<string, number>, most: number) => [...of].sort((a, b) => b[1] - a[1]).slice(0, most);
  return { thread, busyMs, byOrigin: top(origins, 14), byFunction: top(functions, 14) };
}

/** Null for Node's own code and for what has no place in a file. */
function originOf(functionName: string, url: string): string | null {
  if (functionName === '(garbage collector)' || functionName === '(program)') return functionName;
  if (functionName === '(root)') return 'node';
  if (url === '' || url.startsWith('node:')) return null;
  const dependency = /.*node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(url)?.[1];
  if (dependency !== undefined) return dependency;
  return (
    /\/((?:activities|shared\/\w+|workers|workflows|bench)(?:\/(?!\w+\.\w+$)\w+)?)\//.exec(url)?.[1] ??
    shortUrl(url)
  );
}

function shortUrl(url: string): string {
  return url.split('/').slice(-2).join('/');
}
