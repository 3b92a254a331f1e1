// Fails when an installed package says that it does not run on the oldest Node we promise: npm only warns.
// Usage: node .ci/check-engines.mjs   (part of `npm run check`)
import { readFileSync } from 'node:fs';
import semver from 'semver';

const OLDEST_NODE = '20.20.0';

/** Packages that are wrong about themselves, each with how we know. */
const EXCEPTIONS = new Map();

const lock = JSON.parse(readFileSync(new URL('../package-lock.json', import.meta.url), 'utf8'));
const refused = Object.entries(lock.packages)
  .filter(([path]) => path.startsWith('node_modules/'))
  .map(([path, { version, engines, optional }]) => ({
    name: path.replace(/^.*node_modules\//, ''),
    version,
    node: engines?.node,
    optional,
  }))
  .filter(({ name, node }) => node !== undefined && !EXCEPTIONS.has(name))
  .filter(({ node }) => !semver.satisfies(OLDEST_NODE, node));

for (const { name, version, node } of refused) {
  process.stderr.write(
    `engines: ${name} ${version} wants Node ${node}, and Holdfast promises ${OLDEST_NODE}. Pin an older major.\n`,
  );
}
process.exitCode = refused.length > 0 ? 1 : 0;
