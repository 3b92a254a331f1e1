import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { candidates } from '../cli/commands/completion.js';
import { cliPage } from '../cli/docs-page.js';
import { createProgram } from '../cli/program.js';
import { verifyExport, type RunExport } from '../shared/ledger/verify-export.js';
import { CONTRACT, holdfast } from './support/cli.js';
import { fates, interruptOf, newGate, newUnknown } from './support/desk.js';
import { newWait } from './support/input.js';
import { callOf } from './support/ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTcpProxy } from './support/tcp-proxy.js';
import { startTestApi, type TestApi } from './support/test-api.js';

let ledger: LedgerWorld;
let api: TestApi;
let folder: string;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
  folder = await mkdtemp(join(tmpdir(), 'holdfast-cli-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const run = (...args: string[]) => holdfast(api.url, args);
const START = ['runs', 'start', '-a', LEDGER_AGENT.name, '-i', 'Look at ORD-1', ...CONTRACT];
const countRuns = async (): Promise<number> =>
  (await ledger.rows<{ n: number }>('select count(*)::int as n from holdfast.runs'))[0]!.n;
const keyIn = (err: string): string => /the key of this request is (\S+)/.exec(err)?.[1] ?? 'no key';

describe('results', () => {
  test('are JSON lines in a pipe and tables on a terminal, each when it is asked for', async () => {
    const started = await run(...START);
    expect(started.code).toBe(0);
    const id = String(started.rows()[0]?.['run_id']);
    const piped = await run('runs', 'list', '-n', '1');
    expect(piped.rows()).toMatchObject([{ run_id: id, state: 'admitted', actor_id: 'cleo' }]);
    const shown = await holdfast(api.url, ['runs', 'list', '-n', '1'], { terminal: [] });
    expect(shown.out.split('\n').map((line) => line.split(/\s{2,}/).slice(0, 3))).toStrictEqual([
      ['run', 'agent', 'state'],
      [id, LEDGER_AGENT.name, 'admitted'],
      [''],
    ]);
    expect((await run('runs', 'list', '-n', '1', '--table')).out).toBe(shown.out);
    expect((await holdfast(api.url, ['runs', 'list', '-n', '1', '--json'], { terminal: [] })).out).toBe(
      piped.out,
    );
  });

  test('of a list are as many as are wanted, page by page', async () => {
    const parent = await ledger.newRun();
    for (let n = 0; n < 103; n += 1) await ledger.newRun({}, { actorId: 'user:many' });
    const all = await run('runs', 'list', '-n', '103');
    expect(new Set(all.rows().map((row) => row['run_id'])).size).toBe(103);
    expect(all.rows().every((row) => row['actor_id'] === 'user:many')).toBe(true);
    expect((await run('runs', 'list', '--parent', parent.runId)).out).toBe('');
    expect((await run('runs', 'list', '--parent', parent.runId, '--table')).out).toBe(
      'There is no such run.\n',
    );
  });

  test('show nothing that would move a terminal’s cursor, whoever wrote it', async () => {
    const gate = await newGate(ledger, { arguments: JSON.stringify({ note: '\u001b[2Jgone\u202e' }) });
    const { out } = await run('approvals', 'show', gate.interruptId, '--table');
    expect(out).toContain('gone');
    expect(out).not.toMatch(/[\u001b\u202e]/);
  });
});

describe('a start', () => {
  test('that is sent and not answered is asked again under its key, and is one run', async () => {
    const before = await countRuns();
    const proxy = await startTcpProxy(api.url);
    proxy.cutReplyAfter('POST /v1/runs', 2);
    const started = await holdfast(proxy.via(api.url), START);
    expect([started.code, proxy.cuts]).toStrictEqual([0, 2]);
    expect(started.err).toContain('an earlier request with this key had started it');
    expect(await countRuns()).toBe(before + 1);
  });

  test('that is never answered is unclear, and the same command with its key gives the run it was', async () => {
    const before = await countRuns();
    const proxy = await startTcpProxy(api.url);
    proxy.cutReplyAfter('POST /v1/runs', 1_000);
    const lost = await holdfast(proxy.via(api.url), [...START, '--timeout', '1']);
    expect(lost.code).toBe(5);
    const key = keyIn(lost.err);
    expect(lost.err).toContain(`outcome_unclear`);
    expect(lost.err).toContain(`--key ${key}`);
    expect(await countRuns()).toBe(before + 1);
    const again = await run(...START, '--key', key);
    expect(again.code).toBe(0);
    expect(await countRuns()).toBe(before + 1);
    const other = await run(...START, '--owner', 'somebody-else', '--key', key);
    expect(other.code).toBe(4);
    expect(other.err).toContain('idempotency_key_reused');
  });

  test('where nobody listens is not sent, and says so at once', async () => {
    const proxy = await startTcpProxy(api.url);
    await proxy.refuse();
    const refused = await holdfast(proxy.via(api.url), START);
    expect(refused.code).toBe(3);
    expect(refused.err).toMatch(/not_reachable: .*ECONNREFUSED.*Nothing was changed.*HOLDFAST_API/);
  });

  test('takes its input and its contract from files and from standard input', async () => {
    const contract = join(folder, 'contract.json');
    await writeFile(
      contract,
      JSON.stringify({ objective: 'From a file.', owner: 'desk', limits: { steps_max: 3 } }),
    );
    const args = [
      'runs',
      'start',
      '-a',
      LEDGER_AGENT.name,
      '--input-json',
      '-',
      '--contract',
      `@${contract}`,
    ];
    const judged = ['--rule', 'Stated.', '--accepted-by', 'desk', '--owner', 'lead'];
    const started = await holdfast(api.url, [...args, ...judged], { stdin: '{"order":"ORD-7"}' });
    expect(started.rows()).toMatchObject([
      {
        input: { order: 'ORD-7' },
        contract: {
          objective: 'From a file.',
          owner: 'lead',
          acceptance: { rule: 'Stated.' },
          limits: { steps_max: 3 },
        },
      },
    ]);
  });
});

describe('a failure', () => {
  test('is told as code, what was wrong and where, on standard error, as lines or as JSON', async () => {
    const none = await run('runs', 'show', `run_${'0'.repeat(32)}`);
    expect([none.code, none.out]).toStrictEqual([4, '']);
    expect(none.err).toMatch(/^holdfast: run_not_found: .*\n {2}occurrence: urn:holdfast:request:req_/);
    const wrong = await run('runs', 'start', '-a', 'nobody', '-i', 'x', ...CONTRACT, '--json');
    expect(wrong.code).toBe(4);
    expect(JSON.parse(wrong.err.split('\n').at(-2) ?? '')).toMatchObject({
      exit: 4,
      error: { code: 'agent_not_found', errors: [{ at: 'body/agent' }] },
    });
  });

  // prettier-ignore
  test.each([
    [['runs', 'stop', 'run_1']], [['runs', 'show']], [['runs', 'show', '../../healthz']], [['runs', 'list', '-n', '0']],
    [['runs', 'list', '--state', 'done']], [['runs', 'watch', 'run_1', '--from', '-1']], [['--api', 'ftp://x', 'runs', 'list']],
    [['--api', 'http://me:secret@x', 'runs', 'list']], [[...START, '--input-json', '1']], [['runs', 'start', '-a', 'x']],
    [['runs', 'pause', 'run_1', '--key', 'two words']], [['reconcile', 'settle', 'eff_1', '--as', 'committed', '--note', 'n', '-y']],
  ])('of the command line %j is 2, and sends nothing', async (args) => {
    const before = await countRuns();
    const { code, out, err } = await run(...args);
    expect([code, out]).toStrictEqual([2, '']);
    expect(err).toMatch(/^holdfast: usage: /m);
    expect(err).not.toContain('secret');
    expect(await countRuns()).toBe(before);
  });

  test('of an address where something else answers is told as that', async () => {
    const other = createServer((_request, response) => void response.end('<html>Hello</html>'));
    await new Promise<void>((resolve) => void other.listen(0, '127.0.0.1', resolve));
    const url = `http://127.0.0.1:${(other.address() as AddressInfo).port}`;
    for (const args of [
      ['runs', 'list'],
      ['runs', 'watch', 'run_1'],
      ['runs', 'export', 'run_1'],
    ]) {
      const { code, err } = await holdfast(url, args);
      expect([args[1], code, /not_the_api|export_not_whole/.test(err)]).toStrictEqual([
        args[1],
        args[1] === 'export' ? 1 : 3,
        true,
      ]);
    }
    await new Promise((resolve) => other.close(resolve));
  });
});

describe('steering', () => {
  test('pauses and resumes at once, and cancels only after a yes', async () => {
    const steered = await ledger.newStep([callOf('keyed')]);
    const id = steered.runId;
    expect((await run('runs', 'pause', id, '--reason', 'a look')).rows()).toMatchObject([
      { kind: 'pause', fate: 'accepted', reason: 'a look', actor_id: 'cleo' },
    ]);
    const unasked = await run('runs', 'cancel', id);
    expect([unasked.code, unasked.err.includes('--yes')]).toStrictEqual([2, true]);
    const no = await holdfast(api.url, ['runs', 'cancel', id], { terminal: [{ read: 'Cancel', type: 'n' }] });
    expect([no.code, no.err.includes('Nothing was sent')]).toStrictEqual([1, true]);
    expect(await fates(steered)).toStrictEqual(['pause accepted']);
    const yes = await holdfast(api.url, ['runs', 'cancel', id], {
      terminal: [{ read: 'Cancel', type: 'y' }],
    });
    expect(yes.code).toBe(0);
    expect((await fates(steered)).at(-1)).toBe('cancel accepted');
    const late = await run('runs', 'resume', id);
    expect([late.code, late.err.includes('cancel_in_force')]).toStrictEqual([4, true]);
  });

  test('refuses a run that has moved on from the version that was seen', async () => {
    const { runId } = await ledger.newStep([callOf('keyed')]);
    const refused = await run('runs', 'cancel', runId, '--expect-version', '1', '-y');
    expect([refused.code, refused.err.includes('state_version_conflict')]).toStrictEqual([4, true]);
  });
});

describe('a decision', () => {
  test('on an approval names the digest of what was shown, and nobody approves what nobody has seen', async () => {
    const gate = await newGate(ledger);
    const id = gate.interruptId;
    expect((await run('approvals', 'list', '--run', gate.run.runId)).rows()).toMatchObject([
      { interrupt_id: id, state: 'open' },
    ]);
    const unseen = await run('approvals', 'approve', id, '--yes');
    expect([unseen.code, unseen.err.includes('--scope')]).toStrictEqual([2, true]);
    const stale = await run('approvals', 'approve', id, '--yes', '--scope', 'f'.repeat(64));
    expect([stale.code, stale.err.includes('scope_changed')]).toStrictEqual([4, true]);
    expect((await interruptOf(gate.call)).state).toBe('open');
    const seen = await holdfast(api.url, ['approvals', 'approve', id], {
      terminal: [{ read: 'Approve', type: 'y' }],
    });
    expect(seen.code).toBe(0);
    // What would run was shown before the question.
    expect(seen.err.indexOf(gate.scopeSha256)).toBeGreaterThan(-1);
    expect(seen.err.indexOf(gate.scopeSha256)).toBeLessThan(seen.err.indexOf('Approve'));
    expect((await interruptOf(gate.call)).state).toBe('approved');
    const revoked = await run('approvals', 'revoke', id, '--scope', gate.scopeSha256, '-y');
    expect(revoked.code).toBe(0);
  });

  test('denies with a note, and a decision that is asked again under its key stands', async () => {
    const gate = await newGate(ledger);
    const args = [
      'approvals',
      'deny',
      gate.interruptId,
      '--note',
      'Too old.',
      '--scope',
      gate.scopeSha256,
      '-y',
    ];
    const denied = await run(...args, '--key', 'deny-1');
    expect(denied.rows()).toMatchObject([
      { state: 'denied', decisions: [{ note: 'Too old.', actor_id: 'cleo' }] },
    ]);
    expect((await run(...args, '--key', 'deny-1')).out).toBe(denied.out);
    expect((await run(...args)).code).toBe(4);
  });

  test('on a wait for input is given as JSON, or typed', async () => {
    const [first, second] = [await newWait(ledger), await newWait(ledger)];
    const answered = await run('interrupts', 'resolve', first.interruptId, '--answer', '{"order":"ORD-1"}');
    const refused = await run('interrupts', 'resolve', second.interruptId, '--answer', '[17]');
    expect([refused.code, refused.err.includes('answer_invalid')]).toStrictEqual([4, true]);
    const typed = await holdfast(api.url, ['interrupts', 'resolve', second.interruptId], {
      terminal: [{ read: 'as JSON', type: '{"order":"ORD-1"}\r' }],
    });
    expect([answered.code, typed.code]).toStrictEqual([0, 0]);
    expect(answered.rows()).toMatchObject([{ state: 'answered' }]);
  });

  test('settles what nobody knows, with its note, for ever', async () => {
    const call = await newUnknown(ledger);
    const { effect_id: id } = await call.effect();
    expect((await run('reconcile', 'list', '--run', call.run.runId)).rows()).toMatchObject([
      { effect_id: id },
    ]);
    const args = [
      'reconcile',
      'settle',
      id,
      '--as',
      'committed',
      '--reference',
      're_1',
      '--note',
      'In the journal.',
    ];
    expect((await run(...args)).code).toBe(2);
    expect((await run(...args, '-y')).rows()).toMatchObject([
      { settlement: { decided: 'committed', actor_id: 'cleo' } },
    ]);
    expect((await run(...args, '-y')).err).toContain('already_settled');
  });
});

describe('an export', () => {
  test('is checked on its way, and a file is there whole or not at all', async () => {
    const { runId } = await ledger.newStep([callOf('keyed')]);
    const file = join(folder, 'run.json');
    const done = await run('runs', 'export', runId, '--out', file);
    expect(done.code).toBe(0);
    const text = await readFile(file, 'utf8');
    expect(verifyExport(JSON.parse(text) as RunExport)).toStrictEqual([]);
    expect((await run('runs', 'export', runId)).out).toBe(text);
    const proxy = await startTcpProxy(api.url);
    proxy.cutReplyAfter('/export', 1);
    const cut = await holdfast(proxy.via(api.url), [
      'runs',
      'export',
      runId,
      '--out',
      join(folder, 'cut.json'),
    ]);
    expect(cut.code).toBe(3);
    expect(await readdir(folder)).not.toContain('cut.json');
    expect((await readdir(folder)).filter((name) => name.endsWith('.part'))).toStrictEqual([]);
  });
});

test('completion knows groups, commands, options and their choices', () => {
  const { stdin, stdout, stderr, env } = process;
  const io = { stdin, stdout, stderr, env, interrupted: new AbortController().signal };
  const program = createProgram({ io, end: () => undefined });
  expect(candidates(program, ['r'])).toStrictEqual(['reconcile', 'runs']);
  expect(candidates(program, ['runs', 're'])).toStrictEqual(['resume']);
  expect(candidates(program, ['runs', 'list', '--state', 'comp'])).toStrictEqual([
    'compensated',
    'compensating',
    'completed',
  ]);
  expect(candidates(program, ['runs', 'cancel', '--'])).toEqual(
    expect.arrayContaining(['--compensate', '--yes', '--json']),
  );
  expect(candidates(program, ['completion', ''])).toStrictEqual(['bash', 'fish', 'zsh']);
});

test('docs/cli.md is what `npm run docs:write` writes', async () => {
  expect(await readFile(new URL('../docs/cli.md', import.meta.url), 'utf8')).toBe(cliPage());
});
