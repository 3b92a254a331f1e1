import { COMMAND_KINDS, type CommandKind, controlTable, judgeCommand, treatmentOf } from './control-table.js';
import { markdownTable } from './markdown-table.js';
import { CONTROL_STATES, RUN_STATES } from './run-machine.js';

/** docs/control-table.json: every command by every pair of states, one cell a line. */
export function controlTableJson(): string {
  const cells = controlTable().map((cell) => JSON.stringify(cell));
  return `[\n${cells.join(',\n')}\n]\n`;
}

/** docs/control-table.md: what each command makes of each state, and what becomes of the run's work. */
export function controlTablePage(): string {
  return [
    '# Commands by states',
    '',
    'Written by `npm run docs:write` from `shared/domain/control-table.ts`; a test compares. The same cells stand in',
    '`docs/control-table.json` for programs, and the ledger judges by `holdfast.judge_command`, which a test compares too.',
    '',
    'A command is judged when it is stored, under the lock of its run. `accepted`: in force at once, so that nothing is',
    'dispatched against it; the run carries it out at its next safe point. `applied`: done at once, in the transaction that',
    'stored it. `same`: it is so already; the command counts as applied and nothing changes. Every other word is the code of the refusal ([errors](errors.md)).',
    '',
    'A cancel that is accepted overtakes a pause or a resume in force, which then expire with `cancel_in_force`. A run that',
    'ends first lets what is still accepted expire with `run_ended`.',
    '',
    ...COMMAND_KINDS.flatMap(section),
    ...withCompensate(),
  ].join('\n');
}

const DOES: Readonly<Record<CommandKind, string>> = {
  pause:
    'Takes on no new work. What is in flight settles first (`draining`, with counts), then the run is `drained`.',
  resume: 'Takes a paused run up again under a new epoch. What came due meanwhile is taken up, in order.',
  cancel:
    'Ends the run `cancelled` once the outside truth of every effect is known, and says what had happened and what not.',
  change_budget:
    'Raises or lowers limits of the run. A wait over its budget is superseded and the run looks again. A limit ' +
    'that was not there counts from now on; one that the run cannot count refuses it (`budget_not_set`).',
  change_deadline:
    'Sets when the run must be over, earlier or later. A wait over its budget is superseded and the run looks again.',
};

function withCompensate(): string[] {
  const verdicts = RUN_STATES.map((state) => [
    `\`${state}\``,
    ...CONTROL_STATES.map((control) => judgeCommand('cancel', state, control, true)),
  ]);
  return [
    '## cancel with `compensate`',
    '',
    'Stops the run like a cancel, then undoes what happened, backwards, and ends it `compensated`, or `failed` where a person',
    'left something as it is. Once a run undoes what it did, every cancel is `same` wherever it stands; so is one with',
    '`compensate` while another with `compensate` is in force. Where it is accepted it does what a cancel does.',
    '',
    ...markdownTable([['run ╲ control', ...CONTROL_STATES.map((state) => `\`${state}\``)], ...verdicts]),
    '',
  ];
}

function section(kind: CommandKind): string[] {
  const verdicts = RUN_STATES.map((state) => [
    `\`${state}\``,
    ...CONTROL_STATES.map((control) => judgeCommand(kind, state, control)),
  ]);
  const taken = RUN_STATES.filter((state) =>
    CONTROL_STATES.some((control) => ['accepted', 'applied'].includes(judgeCommand(kind, state, control))),
  );
  const treatments = taken.map((state) => {
    const { inFlight, waits, interrupts } = treatmentOf(kind, state);
    return [`\`${state}\``, ...[inFlight, waits, interrupts].map((word) => word.replaceAll('_', ' '))];
  });
  return [
    `## ${kind}`,
    '',
    DOES[kind],
    '',
    ...markdownTable([['run ╲ control', ...CONTROL_STATES.map((state) => `\`${state}\``)], ...verdicts]),
    '',
    'Where it is accepted:',
    '',
    ...markdownTable([['run', 'work in flight', 'timers and waits', 'open interrupts'], ...treatments]),
    '',
  ];
}
