// `npm run check`: every check of the source, two at a time, each with its output whole; the first failure is the exit code.
import { spawn } from 'node:child_process';

// The longest first.
const CHECKS = ['lint', 'typecheck', 'format:check', 'arrows', 'unused', 'engines'];
const AT_ONCE = 2;

/** Runs one script of package.json. @returns its exit code */
function run(name) {
  return new Promise((resolve) => {
    const child = spawn('npm', ['run', '--silent', name], { stdio: ['ignore', 'pipe', 'pipe'] });
    const output = [];
    child.stdout.on('data', (part) => output.push(part));
    child.stderr.on('data', (part) => output.push(part));
    child.on('close', (code) => {
      process.stdout.write(
        `${code === 0 ? 'passed' : 'FAILED'}  ${name}\n${Buffer.concat(output).toString()}`,
      );
      resolve(code ?? 1);
    });
  });
}

const left = [...CHECKS];
let failed = 0;
await Promise.all(
  Array.from({ length: AT_ONCE }, async () => {
    for (let name = left.shift(); name !== undefined; name = left.shift()) {
      const code = await run(name);
      failed ||= code;
    }
  }),
);
process.exit(failed);
