import { pinMcpTools } from './pin-mcp-tools.js';

/** `node --import tsx activities/project/pin-main.ts <project file>`: writes the lock file of MCP tools. */
async function main(projectPath: string | undefined): Promise<void> {
  if (projectPath === undefined) throw new Error('Give the path of the project file.');
  const pinned = await pinMcpTools(projectPath, process.env);
  for (const { server, tool, digest, change } of pinned) {
    process.stdout.write(`${change.padEnd(7)} ${server}/${tool} ${digest.slice(0, 12)}\n`);
  }
}

try {
  await main(process.argv[2]);
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}
