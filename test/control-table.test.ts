import { readFile } from 'node:fs/promises';
import pg from 'pg';
import { describe, expect, test } from 'vitest';
import { controlTableJson, controlTablePage } from '../shared/domain/control-table-page.js';
import {
  COMMAND_KINDS,
  type CommandKind,
  controlTable,
  judgeCommand,
  treatmentOf,
  VERDICTS,
  type Verdict,
} from '../shared/domain/control-table.js';
import { ERRORS } from '../shared/domain/errors.js';
import { CONTROL_STATES, isTerminal, RUN_STATES } from '../shared/domain/run-machine.js';
import { createTestDatabase } from './support/servers.js';

// Goal: what a command makes of a run is one table, the same for people, the API and the ledger. Method: every cell
// stands here as text, and is compared with the function, the ledger's own judgement and the exported files.

const SHORT: Readonly<Record<Verdict, string>> = {
  accepted: 'yes',
  applied: 'done',
  same: '=',
  run_ended: 'ended',
  cancel_in_force: 'cancel',
  resume_in_progress: 'resume',
  pause_in_progress: 'pause',
  not_paused: 'not',
};

// Columns: active, pause_requested, pausing, paused, resume_requested, claiming, cancel_requested.
const CHANGE = `
admitted             done   done   done   done   done   done   cancel
running              done   done   done   done   done   done   cancel
waiting_for_input    done   done   done   done   done   done   cancel
awaiting_approval    done   done   done   done   done   done   cancel
retry_wait           done   done   done   done   done   done   cancel
compensating         done   done   done   done   done   done   cancel
cancelling           cancel cancel cancel cancel cancel cancel cancel
needs_reconciliation done   done   done   done   done   done   cancel
reconciling          done   done   done   done   done   done   cancel
completed            ended  ended  ended  ended  ended  ended  ended
compensated          ended  ended  ended  ended  ended  ended  ended
failed               ended  ended  ended  ended  ended  ended  ended
cancelled            ended  ended  ended  ended  ended  ended  ended`;

const CELLS: Readonly<Record<CommandKind, string>> = {
  change_budget: CHANGE,
  change_deadline: CHANGE,
  pause: `
admitted             yes    =      =      =      resume resume cancel
running              yes    =      =      =      resume resume cancel
waiting_for_input    yes    =      =      =      resume resume cancel
awaiting_approval    yes    =      =      =      resume resume cancel
retry_wait           yes    =      =      =      resume resume cancel
compensating         yes    =      =      =      resume resume cancel
cancelling           cancel cancel cancel cancel cancel cancel cancel
needs_reconciliation yes    =      =      =      resume resume cancel
reconciling          yes    =      =      =      resume resume cancel
completed            ended  ended  ended  ended  ended  ended  ended
compensated          ended  ended  ended  ended  ended  ended  ended
failed               ended  ended  ended  ended  ended  ended  ended
cancelled            ended  ended  ended  ended  ended  ended  ended`,
  resume: `
admitted             not    pause  pause  yes    resume resume cancel
running              not    pause  pause  yes    resume resume cancel
waiting_for_input    not    pause  pause  yes    resume resume cancel
awaiting_approval    not    pause  pause  yes    resume resume cancel
retry_wait           not    pause  pause  yes    resume resume cancel
compensating         not    pause  pause  yes    resume resume cancel
cancelling           cancel cancel cancel cancel cancel cancel cancel
needs_reconciliation not    pause  pause  yes    resume resume cancel
reconciling          not    pause  pause  yes    resume resume cancel
completed            ended  ended  ended  ended  ended  ended  ended
compensated          ended  ended  ended  ended  ended  ended  ended
failed               ended  ended  ended  ended  ended  ended  ended
cancelled            ended  ended  ended  ended  ended  ended  ended`,
  cancel: `
admitted             yes    yes    yes    yes    yes    yes    =
running              yes    yes    yes    yes    yes    yes    =
waiting_for_input    yes    yes    yes    yes    yes    yes    =
awaiting_approval    yes    yes    yes    yes    yes    yes    =
retry_wait           yes    yes    yes    yes    yes    yes    =
compensating         =      =      =      =      =      =      =
cancelling           =      =      =      =      =      =      =
needs_reconciliation yes    yes    yes    yes    yes    yes    =
reconciling          yes    yes    yes    yes    yes    yes    =
completed            ended  ended  ended  ended  ended  ended  ended
compensated          =      =      =      =      =      =      =
failed               ended  ended  ended  ended  ended  ended  ended
cancelled            =      =      =      =      =      =      =`,
};

/** Of a cancel with `compensate`. */
const CELLS_WITH_COMPENSATE = `
admitted             yes    yes    yes    yes    yes    yes    cancel
running              yes    yes    yes    yes    yes    yes    cancel
waiting_for_input    yes    yes    yes    yes    yes    yes    cancel
awaiting_approval    yes    yes    yes    yes    yes    yes    cancel
retry_wait           yes    yes    yes    yes    yes    yes    cancel
compensating         =      =      =      =      =      =      =
cancelling           cancel cancel cancel cancel cancel cancel cancel
needs_reconciliation yes    yes    yes    yes    yes    yes    cancel
reconciling          yes    yes    yes    yes    yes    yes    cancel
completed            ended  ended  ended  ended  ended  ended  ended
compensated          =      =      =      =      =      =      =
failed               ended  ended  ended  ended  ended  ended  ended
cancelled            ended  ended  ended  ended  ended  ended  ended`;

/** A table of verdicts in the form of `CELLS`. */
function drawn(kind: CommandKind, verdict: (place: string) => Verdict): string {
  const rows = RUN_STATES.map((state) =>
    [
      state.padEnd(20),
      ...CONTROL_STATES.map((control) => SHORT[verdict(`${kind} ${state} ${control}`)].padEnd(6)),
    ]
      .join(' ')
      .trimEnd(),
  );
  return `\n${rows.join('\n')}`;
}

const table = controlTable();
const byPlace = new Map(
  table.map(({ command, state, control, verdict }) => [`${command} ${state} ${control}`, verdict]),
);

describe('the control table', () => {
  test.each(COMMAND_KINDS)('of %s, cell by cell', (kind) => {
    expect(drawn(kind, (place) => byPlace.get(place)!)).toBe(CELLS[kind]);
  });

  test('of a cancel with compensate, cell by cell', () => {
    const verdicts = new Map(
      table
        .filter(({ command }) => command === 'cancel')
        .map(({ state, control, verdictWithCompensate }) => [
          `cancel ${state} ${control}`,
          verdictWithCompensate!,
        ]),
    );
    expect(drawn('cancel', (place) => verdicts.get(place)!)).toBe(CELLS_WITH_COMPENSATE);
    const others = table.filter(({ command }) => command !== 'cancel');
    expect(new Set(others.map(({ verdictWithCompensate }) => verdictWithCompensate))).toStrictEqual(
      new Set([null]),
    );
  });

  test('has one cell for every command and every pair of states', () => {
    expect(table).toHaveLength(COMMAND_KINDS.length * RUN_STATES.length * CONTROL_STATES.length);
    expect(byPlace.size).toBe(table.length);
    for (const { command, state, control, verdict } of table) {
      expect(verdict).toBe(judgeCommand(command, state, control));
    }
  });

  test('uses every verdict, and refuses by codes that the API knows', () => {
    expect([...new Set(byPlace.values())].toSorted()).toStrictEqual([...VERDICTS].toSorted());
    const refusals = VERDICTS.filter(
      (verdict) => verdict !== 'accepted' && verdict !== 'applied' && verdict !== 'same',
    );
    for (const code of refusals) expect([code, ERRORS[code].http]).toStrictEqual([code, 409]);
  });

  test('lets nothing but an end or another cancel stand in the way of a cancel', () => {
    const against = table.filter(({ command, verdict }) => command === 'cancel' && verdict !== 'accepted');
    for (const { state, control, verdict } of against) {
      expect([state, verdict]).toStrictEqual([
        state,
        isTerminal(state) && state !== 'cancelled' && state !== 'compensated' ? 'run_ended' : 'same',
      ]);
      expect(
        isTerminal(state) || control === 'cancel_requested' || ['cancelling', 'compensating'].includes(state),
      ).toBe(true);
    }
  });
});

describe('what an accepted command does', () => {
  test('in each state, cell by cell', () => {
    const rows = COMMAND_KINDS.flatMap((kind) =>
      RUN_STATES.filter((state) => !isTerminal(state)).map((state) => {
        const { inFlight, waits, interrupts } = treatmentOf(kind, state);
        return `${kind.padEnd(15)} ${state.padEnd(20)} ${inFlight.padEnd(10)} ${waits.padEnd(8)} ${interrupts}`;
      }),
    );
    expect(`\n${rows.join('\n')}`).toBe(`
pause           admitted             none       are_held stay_open
pause           running              settles    are_held stay_open
pause           waiting_for_input    none       are_held stay_open
pause           awaiting_approval    none       are_held stay_open
pause           retry_wait           none       are_held stay_open
pause           compensating         settles    are_held stay_open
pause           cancelling           settles    are_held stay_open
pause           needs_reconciliation none       are_held stay_open
pause           reconciling          none       are_held stay_open
resume          admitted             none       go_on    stay_open
resume          running              none       go_on    stay_open
resume          waiting_for_input    none       go_on    stay_open
resume          awaiting_approval    none       go_on    stay_open
resume          retry_wait           none       go_on    stay_open
resume          compensating         none       go_on    stay_open
resume          cancelling           none       go_on    stay_open
resume          needs_reconciliation none       go_on    stay_open
resume          reconciling          none       go_on    stay_open
cancel          admitted             none       end      are_withdrawn
cancel          running              is_aborted end      are_withdrawn
cancel          waiting_for_input    none       end      are_withdrawn
cancel          awaiting_approval    none       end      are_withdrawn
cancel          retry_wait           none       end      are_withdrawn
cancel          compensating         is_aborted end      are_withdrawn
cancel          cancelling           is_aborted end      are_withdrawn
cancel          needs_reconciliation settles    go_on    stay_open
cancel          reconciling          settles    go_on    stay_open
change_budget   admitted             none       go_on    stay_open
change_budget   running              settles    go_on    stay_open
change_budget   waiting_for_input    none       go_on    are_superseded
change_budget   awaiting_approval    none       go_on    stay_open
change_budget   retry_wait           none       go_on    stay_open
change_budget   compensating         settles    go_on    stay_open
change_budget   cancelling           settles    go_on    stay_open
change_budget   needs_reconciliation none       go_on    stay_open
change_budget   reconciling          none       go_on    stay_open
change_deadline admitted             none       go_on    stay_open
change_deadline running              settles    go_on    stay_open
change_deadline waiting_for_input    none       go_on    are_superseded
change_deadline awaiting_approval    none       go_on    stay_open
change_deadline retry_wait           none       go_on    stay_open
change_deadline compensating         settles    go_on    stay_open
change_deadline cancelling           settles    go_on    stay_open
change_deadline needs_reconciliation none       go_on    stay_open
change_deadline reconciling          none       go_on    stay_open`);
  });

  test('in an ended run is nothing', () => {
    for (const kind of COMMAND_KINDS) {
      for (const state of RUN_STATES.filter(isTerminal)) {
        expect(treatmentOf(kind, state)).toStrictEqual({
          inFlight: 'none',
          waits: 'none',
          interrupts: 'none',
        });
      }
    }
  });
});

test('the ledger judges every cell as the table does', async () => {
  const client = new pg.Client((await createTestDatabase()).url);
  await client.connect();
  try {
    const { rows } = await client.query<{ place: string; verdict: Verdict }>(
      `select k || ' ' || s || ' ' || c || case when w then ' with' else '' end as place,
              holdfast.judge_command(jsonb_populate_record(null::holdfast.runs, jsonb_build_object(
                'state', s, 'control', c, 'ended_at', case when s = any ($4) then now() end)), k, w) as verdict
         from unnest($1::text[]) k, unnest($2::text[]) s, unnest($3::text[]) c, unnest(array[true, false]) w`,
      [COMMAND_KINDS, RUN_STATES, CONTROL_STATES, RUN_STATES.filter(isTerminal)],
    );
    const judged = new Map(rows.map(({ place, verdict }) => [place, verdict]));
    for (const kind of COMMAND_KINDS) {
      expect(drawn(kind, (place) => judged.get(place)!)).toBe(CELLS[kind]);
    }
    expect(drawn('cancel', (place) => judged.get(`${place} with`)!)).toBe(CELLS_WITH_COMPENSATE);
  } finally {
    await client.end();
  }
});

describe('docs', () => {
  const readDoc = (name: string): Promise<string> =>
    readFile(new URL(`../docs/${name}`, import.meta.url), 'utf8');

  test('docs/control-table.md and .json are what `npm run docs:write` writes', async () => {
    expect(await readDoc('control-table.md')).toBe(controlTablePage());
    expect(await readDoc('control-table.json')).toBe(controlTableJson());
    expect(JSON.parse(await readDoc('control-table.json'))).toStrictEqual(table);
  });

  test('the page shows every cell of the table', async () => {
    const page = await readDoc('control-table.md');
    for (const kind of COMMAND_KINDS) {
      const lines = page.split(`\n## ${kind}\n`)[1]!.split('\nWhere it is accepted')[0]!.split('\n');
      const shown = new Map<string, string[]>(
        lines
          .filter((line) => line.startsWith('| `'))
          .map((line) => line.split('|').map((cell) => cell.trim().replaceAll('`', '')))
          .map(([, state, ...cells]) => [state!, cells.slice(0, -1)]),
      );
      expect(
        drawn(kind, (place) => {
          const [, state, control] = place.split(' ');
          return shown.get(state!)![CONTROL_STATES.findIndex((name) => name === control)] as Verdict;
        }),
      ).toBe(CELLS[kind]);
    }
  });
});
