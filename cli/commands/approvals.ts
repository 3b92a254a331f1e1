import { spawn } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Option } from 'commander';
import type { Interrupt } from '../api-types.js';
import { type CommandGroup, type CommandSpec, group } from '../command.js';
import { usageError } from '../failures.js';
import { canAsk } from '../io.js';
import { pretty } from '../output.js';
import { readJson } from '../read-value.js';
import type { Session } from '../session.js';
import { decide, listOfWaits, NOTE, readWait, seenScope, showWait, WAIT } from './waits.js';

interface DecideOptions {
  readonly note?: string;
  readonly scope?: string;
  readonly arguments?: string;
}

const SCOPE = new Option(
  '--scope <sha256>',
  'the digest of what was looked at; needed where nothing is shown, and refused when it is another by now',
);
const noteOf = ({ note }: DecideOptions): object => (note === undefined ? {} : { note });

const approve: CommandSpec = {
  name: 'approve',
  summary: 'Approve a call that waits',
  description: 'What would run is shown, and what is approved is that very scope, by its digest.',
  args: [WAIT],
  options: [SCOPE, NOTE],
  examples: ['approvals approve int_0190…', 'approvals approve int_0190… --scope 5f2c… --yes'],
  changes: 'asks',
  async run(session, [id], options: DecideOptions) {
    const wait = await readWait(session, id);
    const scope = await seenScope(session, wait, options.scope);
    await session.confirm(`Approve ${wait.tool} of ${wait.run_id}?`);
    await decide(session, id, { decision: 'approve', scope_sha256: scope, ...noteOf(options) });
  },
};

const deny: CommandSpec = {
  name: 'deny',
  summary: 'Deny a call that waits',
  description: 'It never runs; the model is told so, with the note.',
  args: [WAIT],
  options: [SCOPE, NOTE],
  examples: ['approvals deny int_0190… --note "The order is too old."'],
  changes: 'asks',
  async run(session, [id], options: DecideOptions) {
    const wait = await readWait(session, id);
    const scope = await seenScope(session, wait, options.scope);
    await session.confirm(`Deny ${wait.tool} of ${wait.run_id}?`);
    await decide(session, id, { decision: 'deny', scope_sha256: scope, ...noteOf(options) });
  },
};

const revoke: CommandSpec = {
  name: 'revoke',
  summary: 'Take back an approval that is not used yet',
  description: 'The run asks anew.',
  args: [WAIT],
  options: [SCOPE, NOTE],
  examples: ['approvals revoke int_0190…'],
  changes: 'asks',
  async run(session, [id], options: DecideOptions) {
    const wait = await readWait(session, id);
    const scope = await seenScope(session, wait, options.scope);
    await session.confirm(`Take back the approval of ${wait.tool} of ${wait.run_id}?`);
    await decide(session, id, { decision: 'revoke', scope_sha256: scope, ...noteOf(options) });
  },
};

const edit: CommandSpec = {
  name: 'edit',
  summary: 'Approve a call with other arguments',
  description:
    'The call that waits is superseded by one with these arguments, which is what is approved. Without --arguments they are ' +
    'changed in $EDITOR.',
  args: [WAIT],
  options: [new Option('--arguments <json>', 'what is to run, whole: JSON, @file, or -'), SCOPE, NOTE],
  examples: [
    'approvals edit int_0190…',
    'approvals edit int_0190… --arguments \'{"amount":5}\' --scope 5f2c… --yes',
  ],
  changes: 'asks',
  async run(session, [id], options: DecideOptions) {
    const wait = await readWait(session, id);
    const scope = await seenScope(session, wait, options.scope);
    const args = await changedArguments(session, wait, options.arguments);
    await session.confirm(`Approve ${wait.tool} of ${wait.run_id} with ${JSON.stringify(args)} instead?`);
    await decide(session, id, {
      decision: 'approve',
      scope_sha256: scope,
      arguments: args,
      ...noteOf(options),
    });
  },
};

async function changedArguments(
  { io }: Session,
  wait: Interrupt,
  given: string | undefined,
): Promise<unknown> {
  if (given !== undefined) return await readJson(io, given, '--arguments');
  if (!canAsk(io)) throw usageError('Nobody can edit here: give --arguments. Nothing was sent.');
  const editor = io.env['VISUAL'] || io.env['EDITOR'];
  if (editor === undefined) throw usageError('Set EDITOR, or give --arguments. Nothing was sent.');
  const folder = await mkdtemp(join(tmpdir(), 'holdfast-'));
  try {
    const file = join(folder, 'arguments.json');
    const before = (wait.scope as { arguments?: unknown } | null)?.arguments;
    await writeFile(file, `${pretty(before)}\n`, { mode: 0o600 });
    await runEditor(editor, file);
    return await readJson(io, await readFile(file, 'utf8'), 'What the editor left');
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** EDITOR may hold options (`code --wait`), so a shell reads it; the file is handed to that as a parameter, never as text. */
function runEditor(editor: string, file: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn('/bin/sh', ['-c', `${editor} "$1"`, 'editor', file], { stdio: 'inherit' });
    child.on('error', reject);
    child.on('exit', (code) => {
      if (code === 0) resolve();
      else reject(usageError(`The editor ended with ${code ?? 'a signal'}. Nothing was sent.`));
    });
  });
}

/** `holdfast approvals`. */
export const approvalsGroup: CommandGroup = (cli) =>
  group(cli, 'approvals', 'Decide on calls that wait for an approval', [
    listOfWaits('approval', ['approvals list', 'approvals list --role approver --json']),
    showWait('approvals show int_0190…'),
    approve,
    deny,
    edit,
    revoke,
  ]);
