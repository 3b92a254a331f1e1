import { beforeAll, describe, expect, test } from 'vitest';
import { EFFECT_CLASSES, EFFECT_OUTCOMES, type EffectClass } from '../shared/domain/effect-classes.js';
import {
  EFFECT_EVENTS,
  EFFECT_MOVES,
  EFFECT_STATES,
  type EffectEvent,
  type EffectState,
  isSettled,
  mayResend,
} from '../shared/domain/effect-machine.js';
import { newId } from '../shared/ledger/new-id.js';
import { closeOrphan } from '../shared/ledger/sweep.js';
import type { LedgerCall } from './support/ledger-call.js';
import { openLedger, type LedgerWorld } from './support/ledger-world.js';
import { matrixOf } from './support/matrix.js';

const SHORT: Record<EffectState | EffectEvent, string> = {
  ...{ intended: 'int', dispatching: 'disp', succeeded: 'SUCC', rejected: 'REJ', unknown: 'unkn' },
  ...{ committed: 'COMM', not_committed: 'NOTC', denied: 'DEN', withdrawn: 'WDRN', superseded: 'SUPE' },
  ...{ claim: 'clm', confirm: 'conf', refuse: 'ref', release: 'rel', lose: 'lose', resend: 'send' },
  ...{
    settle_committed: 'setC',
    settle_not_committed: 'setN',
    deny: 'deny',
    withdraw: 'with',
    supersede: 'sup',
  },
};

describe('the effect machine', () => {
  test('has every cell as written here', () => {
    const stepOf = (state: EffectState, event: EffectEvent) => {
      const to = EFFECT_MOVES[state][event];
      return to === undefined
        ? ({ kind: 'refused', code: 'event_not_allowed' } as const)
        : ({ kind: 'moved', to } as const);
    };
    expect(matrixOf(EFFECT_STATES, EFFECT_EVENTS, SHORT, stepOf)).toBe(`
              clm  conf ref  rel  lose send setC setN deny with sup
intended      disp -    -    -    -    -    -    -    DEN  WDRN SUPE
dispatching   -    SUCC REJ  int  unkn -    -    -    -    -    -
succeeded     -    -    -    -    -    -    -    -    -    -    -
rejected      -    -    -    -    -    -    -    -    -    -    -
unknown       -    -    -    -    -    disp COMM NOTC -    -    -
committed     -    -    -    -    -    -    -    -    -    -    -
not_committed -    -    -    -    -    -    -    -    -    -    -
denied        -    -    -    -    -    -    -    -    -    -    -
withdrawn     -    -    -    -    -    -    -    -    -    -    -
superseded    -    -    -    -    -    -    -    -    -    -    -
`);
  });

  test('knows seven settled states, and none of them is left', () => {
    expect(EFFECT_STATES.filter(isSettled)).toStrictEqual([
      ...['succeeded', 'rejected', 'committed', 'not_committed', 'denied', 'withdrawn', 'superseded'],
    ]);
  });

  test('lets only read and keyed effects be sent again', () => {
    expect(EFFECT_CLASSES.filter(mayResend)).toStrictEqual(['read', 'keyed']);
  });

  test('reaches committed and not_committed from unknown alone: by reconciliation, never by an attempt', () => {
    const into = (wanted: EffectState) =>
      EFFECT_STATES.filter((state) => Object.values(EFFECT_MOVES[state]).includes(wanted));
    expect([into('committed'), into('not_committed')]).toStrictEqual([['unknown'], ['unknown']]);
    // What never left can be denied or withdrawn; what may have left cannot.
    expect([into('denied'), into('withdrawn'), into('superseded')]).toStrictEqual([
      ...[['intended'], ['intended'], ['intended']],
    ]);
  });
});

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
  // Hears of every single move, also of two that one call makes.
  await ledger.rows(`create table public.effect_moves (move text primary key)`);
  await ledger.rows(`create function public.note_move() returns trigger language plpgsql as $$ begin
    insert into public.effect_moves values (old.state || ' → ' || new.state) on conflict do nothing;
    return null; end $$`);
  await ledger.rows(`create trigger note_move after update on holdfast.effects
    for each row when (old.state <> new.state) execute function public.note_move()`);
});

/** The question of a status query that was never opened: its answer must not count where none was asked for. */
const question = async (call: LedgerCall) => ({
  ...{ kind: 'query' as const, tenantId: '', tool: '', toolVersion: '', arguments: '', idempotencyKey: '' },
  ...{
    toolSeconds: 1,
    query: 1,
    askedAt: new Date().toISOString(),
    effectId: (await call.effect()).effect_id,
  },
});

type Attempt = { readonly attemptId: string; readonly fencingToken: number } | undefined;

/** Everything that speaks to the ledger about an effect. Each may refuse; none may move it where the table has no edge. */
const DRIVES: Readonly<Record<string, (call: LedgerCall, attempt: Attempt) => Promise<unknown>>> = {
  claim: (call) => call.claim(),
  'claim of a redo': (call) => call.claim({ redo: 1 }),
  'claim of a far redo': (call) => call.claim({ redo: 9 }),
  examine: (call) => call.examine(),
  'close as denied': (call) => call.close('denied', 'approval_expired'),
  'close as withdrawn': (call) => call.close('withdrawn', 'retries_exhausted'),
  'begin a query': (call) => call.beginQuery(),
  'record found': async (call) => call.record(await question(call), 'found'),
  'record absent': async (call) => call.record(await question(call), 'absent'),
  'record inconclusive': async (call) => call.record(await question(call), 'inconclusive'),
  'take over': (call) => call.run.takenOver(),
  'close the orphan': async ({ run }) => {
    const { epoch } = await ledger.runRow(run.runId);
    await closeOrphan(ledger.db, run.runId, epoch, 'workflow_terminated');
  },
  'fail the run': ({ run }) => run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' }),
  'complete the run': ({ run }) => run.commit({ kind: 'move', to: 'completed', reason: 'answer_final' }),
  'claim under an attempt that ended': (call, attempt) =>
    call.claim({ attemptId: attempt?.attemptId ?? newId('att') }),
  ...Object.fromEntries(
    EFFECT_OUTCOMES.map((outcome) => [
      `settle as ${outcome}`,
      async (call: LedgerCall, attempt: Attempt) => attempt && (await call.settle(attempt, outcome)),
    ]),
  ),
  'settle for another execution': async (call, attempt) =>
    attempt && (await call.settle(attempt, 'succeeded', {}, 'exec-stranger')),
};

/** @returns what the function answered, and where it left the effect */
async function drive(effectClass: EffectClass, from: EffectState, name: string): Promise<string> {
  const call = await ledger.newCall(effectClass, {
    policy: { query: { settlingSeconds: 0, equalAnswers: 1 } },
  });
  const attempt = await call.bringTo(from);
  const before = await call.effect();
  expect(before.state).toBe(from);
  // A refusal is an answer as well: what counts is what became of the row.
  const answer = await DRIVES[name]!(call, attempt).then(
    () => 'done',
    (error: unknown) => (error instanceof Error ? error.message.split(':')[0]! : String(error)),
  );
  const [after] = await ledger.rows<{ state: EffectState }>(
    'select state from holdfast.effects where effect_id = $1',
    before.effect_id,
  );
  return `${name}: ${answer}, ${from} → ${after!.state}`;
}

describe('every function of the ledger', () => {
  const cases = EFFECT_CLASSES.flatMap((effectClass) =>
    EFFECT_STATES.map((from) => [effectClass, from] as const),
  );

  test.each(cases)('leaves a %s effect that is %s there or moves it on', async (effectClass, from) => {
    const outcomes = await Promise.all(Object.keys(DRIVES).map((name) => drive(effectClass, from, name)));
    const moved = outcomes.filter((outcome) => !outcome.endsWith(`→ ${from}`));
    if (isSettled(from)) expect(moved).toStrictEqual([]);
    else expect(moved.length).toBeGreaterThan(0);
  });

  test('together make every move of the table but the one that nothing makes yet, and no other', async () => {
    const table = EFFECT_STATES.flatMap((from) =>
      Object.values(EFFECT_MOVES[from]).map((to) => `${from} → ${to}`),
    );
    const made = await ledger.rows<{ move: string }>('select move from public.effect_moves');
    // This file itself writes intended → superseded, for want of an edit of an approved call.
    expect(made.map(({ move }) => move).toSorted()).toStrictEqual(table.toSorted());
  });
});
