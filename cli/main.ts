import { runCli } from './run.js';

// A reader that goes away (`| head`) has what it wanted: that is no failure.
for (const stream of [process.stdout, process.stderr]) {
  stream.on('error', (error: NodeJS.ErrnoException) => process.exit(error.code === 'EPIPE' ? 0 : 1));
}

const interrupt = new AbortController();
// The first one ends things in order; the second is left to Node, which ends at once.
process.once('SIGINT', () => interrupt.abort());

const { stdin, stdout, stderr, env } = process;
process.exitCode = await runCli(process.argv.slice(2), {
  ...{ stdin, stdout, stderr, env },
  interrupted: interrupt.signal,
});
// What is written to a pipe is out when it is taken; a connection that is kept for a next request is not waited for.
stdout.write('', () => stderr.write('', () => process.exit()));
