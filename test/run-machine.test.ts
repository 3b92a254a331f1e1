import { readFile } from 'node:fs/promises';
import pg from 'pg';
import { describe, expect, test } from 'vitest';
import {
  CONTROL_ABSORBED,
  CONTROL_EVENTS,
  CONTROL_MOVES,
  CONTROL_STATES,
  type ControlEvent,
  type ControlState,
  edges,
  isTerminal,
  RUN_ABSORBED,
  RUN_EVENTS,
  RUN_MOVES,
  RUN_STATES,
  type RunEvent,
  type RunState,
  step,
  stepControl,
  toMermaid,
  TRANSITION_REASONS,
} from '../shared/domain/run-machine.js';
import { runMachineJson, runMachinePage } from '../shared/domain/run-machine-page.js';
import { matrixOf } from './support/matrix.js';
import { createTestDatabase } from './support/servers.js';

// Goal: every cell of both regions is pinned as text that a review can read: what each event makes of each state.
// A target state is where the event leads, `=` changes nothing, `-` is refused, `x` is refused because the run ended.

const RUN_SHORT: Record<RunState | RunEvent, string> = {
  ...{
    admitted: 'adm',
    running: 'run',
    waiting_for_input: 'inp',
    awaiting_approval: 'appr',
    retry_wait: 'retr',
  },
  ...{ compensating: 'cing', cancelling: 'canc', needs_reconciliation: 'need', reconciling: 'reco' },
  ...{ completed: 'COMP', compensated: 'CSTD', failed: 'FAIL', cancelled: 'CNCD' },
  ...{
    start: 'strt',
    ask_input: 'ask',
    input_received: 'got',
    ask_approval: 'askA',
    approval_closed: 'clsA',
  },
  ...{ wait_retry: 'wait', retry_due: 'due', outcome_unknown: 'unkn', reconcile: 'look', settled: 'stld' },
  ...{
    inconclusive: 'incl',
    compensate: 'comp',
    compensation_done: 'cdon',
    cancel: 'cncl',
    wound_down: 'wdwn',
  },
  ...{ complete: 'done', fail: 'fail' },
};
const CONTROL_SHORT: Record<ControlState | ControlEvent, string> = {
  ...{ active: 'act', pause_requested: 'preq', pausing: 'ping', paused: 'PAUS', resume_requested: 'rreq' },
  ...{
    claiming: 'clng',
    cancel_requested: 'creq',
    request_pause: 'pse',
    begin_pause: 'bgnp',
    drained: 'drn',
  },
  ...{
    request_resume: 'res',
    begin_claim: 'bgnc',
    claimed: 'clmd',
    request_cancel: 'cncl',
    cancel_entered: 'entr',
  },
};

describe('every cell', () => {
  test('of the run region', () => {
    expect(matrixOf(RUN_STATES, RUN_EVENTS, RUN_SHORT, step)).toBe(`
                     strt ask  got  askA clsA wait due  unkn look stld incl comp cdon cncl wdwn done fail
admitted             run  -    -    -    -    -    -    -    -    -    -    -    -    CNCD -    -    FAIL
running              =    inp  =    appr =    retr =    need -    =    -    cing -    canc -    COMP FAIL
waiting_for_input    -    =    run  -    -    -    -    -    -    -    -    cing -    CNCD -    COMP -
awaiting_approval    -    -    -    =    run  -    -    -    -    -    -    cing -    CNCD -    -    -
retry_wait           -    -    -    -    -    =    run  -    -    -    -    cing -    canc -    -    FAIL
compensating         -    -    -    -    -    -    -    need -    -    -    =    CSTD =    -    -    FAIL
cancelling           -    -    -    -    -    -    -    need -    -    -    -    -    =    CNCD -    -
needs_reconciliation -    -    -    -    -    -    -    =    reco -    =    =    -    =    -    -    -
reconciling          -    -    -    -    -    -    -    -    =    run  need cing CSTD =    CNCD COMP FAIL
completed            x    x    x    x    x    x    x    x    x    x    x    x    x    x    x    =    x
compensated          x    x    x    x    x    x    x    x    x    x    x    x    =    x    x    x    x
failed               x    x    x    x    x    x    x    x    x    x    x    x    x    x    x    x    =
cancelled            x    x    x    x    x    x    x    x    x    x    x    x    x    =    =    x    x
`);
  });

  test('of the control region', () => {
    expect(matrixOf(CONTROL_STATES, CONTROL_EVENTS, CONTROL_SHORT, stepControl)).toBe(`
                 pse  bgnp drn  res  bgnc clmd cncl entr
active           preq -    -    =    -    =    creq =
pause_requested  =    ping -    -    -    -    creq -
pausing          =    =    PAUS -    -    -    creq -
paused           =    -    =    rreq -    -    creq -
resume_requested -    -    -    =    clng -    creq -
claiming         -    -    -    =    =    act  creq -
cancel_requested -    -    -    -    -    -    =    act
`);
  });

  test('is decided once: no event both moves a state and is absorbed by it', () => {
    for (const state of RUN_STATES) {
      expect(RUN_ABSORBED[state].filter((event) => RUN_MOVES[state][event] !== undefined)).toStrictEqual([]);
    }
    for (const state of CONTROL_STATES) {
      expect(
        CONTROL_ABSORBED[state].filter((event) => CONTROL_MOVES[state][event] !== undefined),
      ).toStrictEqual([]);
    }
  });

  test('leads from one state to another by one event only, so that the ledger may keep the pair', () => {
    const pairs = edges().map(({ region, from, to }) => `${region} ${from} ${to}`);
    expect(new Set(pairs).size).toBe(pairs.length);
  });
});

// SPEC 2, to the letter: `*` marks what extends the classic machine.
const SPEC_TABLE = `
admitted | running · cancelled* · failed*
running | completed · waiting_for_input · awaiting_approval · retry_wait · compensating · cancelling · needs_reconciliation · failed*
waiting_for_input | running · completed · cancelled · compensating*
awaiting_approval | running · cancelled · compensating*
retry_wait | running · failed · cancelling* · compensating*
compensating | compensated · failed · needs_reconciliation
cancelling | cancelled · needs_reconciliation
needs_reconciliation | reconciling
reconciling | completed · compensated · failed · cancelled · running* · compensating* · needs_reconciliation*
`;
const SPEC_CONTROL = [
  'active',
  'pause_requested',
  'pausing',
  'paused',
  'resume_requested',
  'claiming',
  'active',
];

describe('the contract', () => {
  test('has every edge of its table, marked where it extends the classic machine, and no other', () => {
    const written = SPEC_TABLE.trim()
      .split('\n')
      .flatMap((line) => {
        const [from, targets] = line.split(' | ');
        return targets!.split(' · ').map((to) => `${from} → ${to}`);
      });
    const built = edges()
      .filter(({ region }) => region === 'run')
      .map(({ from, to, extension }) => `${from} → ${to}${extension === null ? '' : '*'}`);
    expect(built.toSorted()).toStrictEqual(written.toSorted());
  });

  test('says of every extension why, in a few words', () => {
    for (const { extension } of edges()) {
      if (extension !== null) expect(extension.split(' ').length).toBeGreaterThanOrEqual(4);
    }
  });

  test('has the control region go round, with a cancel from every state of it', () => {
    const built = edges()
      .filter(({ region }) => region === 'control')
      .map(({ from, to }) => `${from} → ${to}`);
    const round = SPEC_CONTROL.slice(1).map((to, index) => `${SPEC_CONTROL[index]} → ${to}`);
    const cancels = CONTROL_STATES.filter((state) => state !== 'cancel_requested').map(
      (state) => `${state} → cancel_requested`,
    );
    expect(built.toSorted()).toStrictEqual([...round, ...cancels, 'cancel_requested → active'].toSorted());
  });

  test('has thirteen states, four of which are ends', () => {
    expect(RUN_STATES).toHaveLength(13);
    expect(RUN_STATES.filter(isTerminal)).toStrictEqual(['completed', 'compensated', 'failed', 'cancelled']);
  });

  test('has a closed list of reasons, none twice', () => {
    expect(new Set(TRANSITION_REASONS).size).toBe(TRANSITION_REASONS.length);
    for (const reason of TRANSITION_REASONS) expect(reason).toMatch(/^[a-z_]{1,64}$/);
  });
});

/** The states that any number of events leads to from `from`. */
function reachable(from: RunState): Set<RunState> {
  const seen = new Set<RunState>([from]);
  for (const state of seen) for (const move of Object.values(RUN_MOVES[state])) seen.add(move.to);
  return seen;
}

describe('the shape', () => {
  test.each(RUN_STATES.filter(isTerminal))('nothing leaves %s', (state) => {
    expect(reachable(state)).toStrictEqual(new Set([state]));
    for (const event of RUN_EVENTS) expect(step(state, event).kind).not.toBe('moved');
  });

  test.each(RUN_STATES)('%s is reached from the admission and reaches an end', (state) => {
    expect(reachable('admitted')).toContain(state);
    expect([...reachable(state)].some(isTerminal)).toBe(true);
  });

  test('needs_reconciliation is left by looking only', () => {
    expect(Object.keys(RUN_MOVES.needs_reconciliation)).toStrictEqual(['reconcile']);
    expect(RUN_MOVES.needs_reconciliation.reconcile?.to).toBe('reconciling');
  });

  test('nothing that waits completes the run but an answer to what was asked', () => {
    const completing = RUN_STATES.filter((state) => RUN_MOVES[state].complete !== undefined);
    expect(completing).toStrictEqual(['running', 'waiting_for_input', 'reconciling']);
    // An approval that expires or is denied never lets anything through to the end.
    expect(step('awaiting_approval', 'complete')).toMatchObject({ kind: 'refused' });
  });

  test('the control region is one whole: every state reaches every other', () => {
    for (const first of CONTROL_STATES) {
      const seen = new Set<ControlState>([first]);
      for (const state of seen) for (const move of Object.values(CONTROL_MOVES[state])) seen.add(move.to);
      expect(seen.size).toBe(CONTROL_STATES.length);
    }
  });
});

const readDoc = (name: string): Promise<string> =>
  readFile(new URL(`../docs/${name}`, import.meta.url), 'utf8');

describe('the drawing', () => {
  test('docs/run-machine.md and .json are what `npm run docs:write` writes', async () => {
    expect(await readDoc('run-machine.md')).toBe(runMachinePage());
    expect(await readDoc('run-machine.json')).toBe(runMachineJson());
    expect(JSON.parse(await readDoc('run-machine.json'))).toStrictEqual(edges());
  });

  test.each(['run', 'control'] as const)(
    'of the %s region has the edges of the table, both ways',
    async (region) => {
      const drawn = (await readDoc('run-machine.md'))
        .split('```mermaid\n')
        .slice(1)
        .map((block) => block.split('\n```')[0]!)
        .find((block) => block === toMermaid(region));
      const lines = [...drawn!.matchAll(/^ {2}(\w+) --> (\w+): (\w+)( \*)?$/gm)];
      expect(lines.map(([, from, to, event, mark]) => [from, event, to, mark !== undefined])).toStrictEqual(
        edges()
          .filter((edge) => edge.region === region)
          .map(({ from, event, to, extension }) => [from, event, to, extension !== null]),
      );
    },
  );

  test('of the page lists every edge with its reason, and no other', async () => {
    const rows = (await readDoc('run-machine.md'))
      .split('\n')
      .filter((line) => line.startsWith('| `'))
      .map((line) => line.split('|').map((cell) => cell.trim().replaceAll('`', '')))
      .map(([, from, event, to, why]) => [from, event, to!.replace(' *', ''), to!.endsWith('*'), why]);
    expect(rows).toStrictEqual(
      edges().map(({ from, event, to, extension }) => [from, event, to, extension !== null, extension ?? '']),
    );
  });
});

describe('the ledger', () => {
  test('holds the same edges, and its domains the same states', async () => {
    const client = new pg.Client((await createTestDatabase()).url);
    await client.connect();
    try {
      const { rows } = await client.query<{ edge: string }>(
        `select region || ' ' || from_state || ' ' || to_state as edge from holdfast.legal_transitions`,
      );
      const known = edges().map(({ region, from, to }) => `${region} ${from} ${to}`);
      expect(rows.map(({ edge }) => edge).toSorted()).toStrictEqual(known.toSorted());

      const checks = await client.query<{ domain: string; check: string }>(
        `select t.typname as domain, pg_get_constraintdef(c.oid) as check
           from pg_constraint c join pg_type t on t.oid = c.contypid
          where t.typnamespace = 'holdfast'::regnamespace and t.typname in ('run_state', 'control_state')`,
      );
      const statesOf = (domain: string): string[] =>
        [...checks.rows.find((row) => row.domain === domain)!.check.matchAll(/'(\w+)'/g)].map(
          ([, state]) => state!,
        );
      expect(statesOf('run_state')).toStrictEqual([...RUN_STATES]);
      expect(statesOf('control_state')).toStrictEqual([...CONTROL_STATES]);
    } finally {
      await client.end();
    }
  });
});
