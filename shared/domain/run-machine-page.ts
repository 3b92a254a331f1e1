import { markdownTable } from './markdown-table.js';
import { type EdgeRow, edges, isTerminal, RUN_STATES, toMermaid } from './run-machine.js';

/** docs/run-machine.json: every edge of both regions, in table order. */
export function runMachineJson(): string {
  return `${JSON.stringify(edges(), null, 2)}\n`;
}

/** docs/run-machine.md: both regions drawn from the table, and every edge in words. */
export function runMachinePage(): string {
  const ends = RUN_STATES.filter(isTerminal).map((state) => `\`${state}\``);
  return [
    '# The run machine',
    '',
    'Written by `npm run docs:write` from `shared/domain/run-machine.ts`; a test compares. The same edges stand in',
    '`docs/run-machine.json` for programs, and in `holdfast.legal_transitions`, where the ledger refuses every other.',
    '',
    `A run that is ${ends.slice(0, -1).join(', ')} or ${ends.at(-1)} stays so. Edges marked * extend the classic machine`,
    'so that a real run has a lawful way on; each says why.',
    '',
    '## The run',
    '',
    ...fenced(toMermaid('run')),
    '',
    ...table(edges().filter((edge) => edge.region === 'run')),
    '',
    '## Control',
    '',
    'Beside the run, since a pause can meet it in any waiting state. A run that is paused may still be approved; it does',
    'not move on until it is resumed. `cancel_requested` stands until the run itself enters `cancelling` or ends.',
    '',
    ...fenced(toMermaid('control')),
    '',
    ...table(edges().filter((edge) => edge.region === 'control')),
    '',
  ].join('\n');
}

const fenced = (diagram: string): string[] => ['```mermaid', ...diagram.split('\n'), '```'];

function table(rows: readonly EdgeRow[]): string[] {
  const cells = rows.map(({ from, event, to, extension }) => [
    `\`${from}\``,
    `\`${event}\``,
    `\`${to}\`${extension === null ? '' : ' *'}`,
    extension ?? '',
  ]);
  return markdownTable([['from', 'event', 'to', 'why it extends'], ...cells]);
}
