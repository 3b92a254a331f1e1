import { markdownTable } from './markdown-table.js';
import { isTerminal, RUN_STATES } from './run-machine.js';
import { DOUBLE_TEXTING, judgeMessage, threadTable, treatmentBy } from './thread-table.js';

/** docs/thread-table.json: every policy by every state, one cell a line. */
export function threadTableJson(): string {
  return `[\n${threadTable()
    .map((cell) => JSON.stringify(cell))
    .join(',\n')}\n]\n`;
}

/** docs/thread-table.md: what a message makes of a run in progress. */
export function threadTablePage(): string {
  const words = (text: string) => text.replaceAll('_', ' ');
  const verdicts = RUN_STATES.map((state) => [
    `\`${state}\``,
    ...DOUBLE_TEXTING.map((policy) => {
      const verdict = judgeMessage(policy, state);
      const underCancel = judgeMessage(policy, state, 'cancel_requested');
      return verdict === underCancel ? verdict : `${verdict}; ${underCancel} under a cancel`;
    }),
  ]);
  const stopped = RUN_STATES.filter((state) => !isTerminal(state)).map((state) => [
    `\`${state}\``,
    words(treatmentBy('stops', state)),
  ]);
  return [
    '# Messages by states',
    '',
    'Written by `npm run docs:write` from `shared/domain/thread-table.ts`; a test compares. The same cells stand in',
    '`docs/thread-table.json` for programs, and the ledger judges by `holdfast.judge_message`, which a test compares too.',
    '',
    'A message is judged when it is accepted, by its own policy or else its thread’s, under the lock of the thread and the',
    'same by whatever route it came. Rows are the states of the thread’s newest run.',
    '',
    ...markdownTable([['run ╲ policy', ...DOUBLE_TEXTING.map((policy) => `\`${policy}\``)], ...verdicts]),
    '',
    '- `starts`: no run is in progress, and the message begins one in the transaction that accepts it.',
    '- `waits`: it begins a run in the transaction that ends the run in progress, whatever that end is; messages that wait',
    '  keep their order.',
    '- `thread_busy`: refused with 409; nothing is kept of it, and its key is free.',
    '- `stops`: the run is cancelled by the right of whoever sent the message, which takes being its requester or an',
    '  operator. What it produced stays in the transcript. The message goes before those that wait; an earlier message that',
    '  was to go next is `superseded` with `newer_message`.',
    '- `rolls_back`: as `stops`, and the run’s messages and answers are left out of every later prompt. What it did outside',
    '  stays done: its effects stay in the ledger, and the read of the thread lists them.',
    '- `joins`: the run takes it up at its next model call, after the results of the step before; at its second one where it',
    '  has not made the first. Only the run’s own requester may. A run that ends without another model call leaves it to the',
    '  thread, and it begins a run of its own like one that waits.',
    '',
    'Where a message stops the run or rolls it back, the run',
    '',
    ...markdownTable([['run', 'then'], ...stopped]),
    '',
  ].join('\n');
}
