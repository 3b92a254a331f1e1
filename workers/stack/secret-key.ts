import { randomBytes } from 'node:crypto';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/**
 * The key of the development stack for the secrets of webhooks, made once and kept beside its data. It must outlive a
 * restart, or no endpoint made before could be signed for.
 */
export async function ownSecretKey(dataDir: string): Promise<string> {
  const path = join(dataDir, 'secret.key');
  await mkdir(dataDir, { recursive: true });
  try {
    // Fails where there is one: of two starts at once, one makes it.
    await writeFile(path, `${randomBytes(32).toString('base64')}\n`, { flag: 'wx', mode: 0o600 });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  return (await readFile(path, 'utf8')).trim();
}
