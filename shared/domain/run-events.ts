import { markdownTable } from './markdown-table.js';

/** The kinds of SPEC 6, by which a reader sorts what it is told. */
type EventKind =
  | 'state'
  | 'transition'
  | 'message'
  | 'chunk'
  | 'tool'
  | 'effect'
  | 'interrupt'
  | 'command'
  | 'child'
  | 'warning';

/** Every type of event that a feed tells: its kind, and what happened. A test compares with the ledger's functions. */
export const EVENT_TYPES: Readonly<Record<string, { readonly kind: EventKind; readonly says: string }>> = {
  'run.admitted': { kind: 'transition', says: 'The run is in the queue; its first event.' },
  'run.transition': {
    kind: 'transition',
    says: 'A move in the region `run` or `control`; the last event of a run is its end.',
  },
  'run.taken_over': { kind: 'transition', says: 'Another execution owns the run, under the next epoch.' },
  'run.resumed': { kind: 'transition', says: 'A paused run was claimed again.' },
  'run.warning': { kind: 'warning', says: 'Something that whoever operates it may want to know, by `code`.' },
  'model.started': {
    kind: 'chunk',
    says: 'An attempt at a model call begins: chunks of earlier attempts of this step are void.',
  },
  'model.chunk': { kind: 'chunk', says: 'Pieces of the answer, joined, of the `attempt` it names.' },
  'model.message': { kind: 'message', says: 'The whole answer, as the transcript keeps it.' },
  'model.failed': { kind: 'warning', says: 'An attempt at a model call failed, and why.' },
  'retry.recorded': { kind: 'warning', says: 'What stopped, what is done about it, and when.' },
  'tool.refused': { kind: 'tool', says: 'A call was answered with an error in place of being planned.' },
  'effect.dispatching': { kind: 'effect', says: 'An attempt was claimed; its request may leave.' },
  'effect.released': { kind: 'effect', says: 'Proof that nothing was done: it may be tried again.' },
  'effect.settled': { kind: 'effect', says: 'The outcome is known.' },
  'effect.unknown': { kind: 'effect', says: 'Nobody knows whether it happened.' },
  'effect.closed': { kind: 'effect', says: 'It ended without ever being sent.' },
  'effect.late_receipt': {
    kind: 'effect',
    says: 'An answer came too late to settle by itself; it is kept as evidence.',
  },
  'effect.queried': { kind: 'effect', says: 'The target was asked what became of it.' },
  'undo.intended': { kind: 'effect', says: 'The compensation of an effect has its intent.' },
  'undo.settled': { kind: 'effect', says: 'A person said what became of an effect that no tool undid.' },
  'undo.waits_for_person': { kind: 'interrupt', says: 'No tool undoes an effect: a person is asked.' },
  'reconciliation.first_word': {
    kind: 'interrupt',
    says: 'One of two people has said what became of an effect.',
  },
  'reconciliation.word_refused': { kind: 'interrupt', says: 'A word on an effect did not count.' },
  'reconciliation.overdue': { kind: 'warning', says: 'An effect waits past its deadline.' },
  'interrupt.opened': { kind: 'interrupt', says: 'Somebody is waited for.' },
  'interrupt.decided': { kind: 'interrupt', says: 'They have decided, or one of several has.' },
  'interrupt.decision_refused': { kind: 'interrupt', says: 'A decision did not count, and why.' },
  'interrupt.expired': { kind: 'interrupt', says: 'Nobody decided in time.' },
  'interrupt.withdrawn': {
    kind: 'interrupt',
    says: 'Nobody is waited for any more: the run moved on or ended.',
  },
  'interrupt.superseded': { kind: 'interrupt', says: 'Another wait has taken its place.' },
  'interrupt.revoked': { kind: 'interrupt', says: 'An approval was taken back before its use.' },
  'interrupt.consumed': { kind: 'interrupt', says: 'An approval was used, once.' },
  'question.settled': { kind: 'message', says: 'A question to a person has its result.' },
  'standing_grant.used': { kind: 'interrupt', says: 'A standing grant took the place of an approval.' },
  'command.accepted': { kind: 'command', says: 'A command is in force.' },
  'command.applied': { kind: 'command', says: 'A command was carried out.' },
  'command.rejected': { kind: 'command', says: 'A command was refused, and why.' },
  'command.expired': { kind: 'command', says: 'The run ended before a command was carried out.' },
  'budget.reached': { kind: 'warning', says: 'A limit stands in the way.' },
  'budget.overrun': { kind: 'warning', says: 'More was used than was held for it.' },
  'budget.changed': { kind: 'command', says: 'A limit was changed.' },
  'deadline.changed': { kind: 'command', says: 'The deadline was changed.' },
  'child.started': { kind: 'child', says: 'A child run was admitted.' },
  'child.settled': { kind: 'child', says: 'A child run has ended; its call has its result.' },
  'child.refused': { kind: 'child', says: 'A child run could not be started, and why.' },
  'child.left': { kind: 'child', says: 'A child run goes on beyond its parent’s cancel.' },
};

/** What stands beside the events for `state=true`: no event of the run. */
export const STATE_TYPES = {
  'state.snapshot': { kind: 'state', says: 'The changing parts of the run read, whole, as of event `seq`.' },
  'state.delta': {
    kind: 'state',
    says: 'What changed of them since, as JSON Patch (RFC 6902) of whole parts.',
  },
} as const;

/** docs/events.md: every type by kind, and what a reader may rely on. */
export function eventsPage(): string {
  const rows = Object.entries({ ...EVENT_TYPES, ...STATE_TYPES }).map(([type, { kind, says }]) => [
    `\`${type}\``,
    kind,
    says,
  ]);
  return [
    '# Events',
    '',
    'Written by `npm run docs:write` from `shared/domain/run-events.ts`; a test compares with the ledger.',
    '',
    'The events of a run are numbered from 1 without gaps. A stream’s `id` is that number, so that `Last-Event-ID` names a place',
    'for any API process; `GET /v1/stream` has ids of its own. New types may come: a reader passes over what it does not know.',
    '',
    ...markdownTable([['type', 'kind', 'says'], ...rows]),
    '',
  ].join('\n');
}
