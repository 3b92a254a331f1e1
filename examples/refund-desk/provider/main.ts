import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { type ProviderOptions, startProvider } from './start-provider.js';

const USAGE = `The payment provider of the refund desk: a stand-in for an outside company.

  node --import tsx examples/refund-desk/provider/main.ts [--port 8330] [--log FILE] [--payments FILE]

The environment says the same: PROVIDER_PORT, PROVIDER_LOG, PROVIDER_PAYMENTS. It listens on 127.0.0.1.`;

function readOptions(args: string[], env: NodeJS.ProcessEnv): ProviderOptions {
  const { values } = parseArgs({
    args,
    options: { port: { type: 'string' }, log: { type: 'string' }, payments: { type: 'string' } },
  });
  const portText = values.port ?? env['PROVIDER_PORT'] ?? '8330';
  const port = Number(portText);
  if (!Number.isInteger(port) || port < 0 || port > 65_535) {
    throw new Error(`Port ${portText} is none. Give a number from 0 (any free port) to 65535.`);
  }
  const ownPayments = fileURLToPath(new URL('payments.json', import.meta.url));
  return {
    port,
    journalPath: values.log ?? env['PROVIDER_LOG'] ?? 'provider.log',
    paymentsPath: values.payments ?? env['PROVIDER_PAYMENTS'] ?? ownPayments,
  };
}

async function main(): Promise<void> {
  const options = readOptions(process.argv.slice(2), process.env);
  const provider = await startProvider(options);
  process.stdout.write(`payment provider listens on ${provider.url}, writes ${options.journalPath}\n`);
  process.send?.({ kind: 'ready', url: provider.url });

  const stop = (): void => {
    provider.stop().then(
      () => process.exit(0),
      (error: unknown) => {
        process.stderr.write(`The provider did not stop cleanly: ${String(error)}\n`);
        process.exit(1);
      },
    );
  };
  process.once('SIGINT', stop);
  process.once('SIGTERM', stop);
  // A parent that is gone, killed or not, leaves no provider behind.
  process.once('disconnect', stop);
}

main().catch((error: unknown) => {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n\n${USAGE}\n`);
  process.exit(1);
});
