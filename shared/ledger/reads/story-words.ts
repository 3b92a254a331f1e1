/** What an entry is told from. */
export interface StoryFacts {
  readonly kind: string;
  readonly data: Readonly<Record<string, unknown>>;
}

type Say = (fact: (name: string) => string) => string;

/** One plain sentence for each kind of entry. */
const SAY: Readonly<Record<string, Say>> = {
  run_moved: (f) =>
    f('from') === '' ? 'The run was admitted.' : `The run went from ${f('from')} to ${f('to')}.`,
  control_moved: (f) => `Control went from ${f('from')} to ${f('to')}.`,
  taken_over: (f) => `An execution took the run under epoch ${f('epoch')}.`,
  message_sent: (f) =>
    `Sent message ${f('seq')} of the thread, under ${f('policy')}; step ${f('step')} read it.`,
  message_rolled_back: (f) => `Message ${f('seq')} left the transcript of the thread with its run.`,
  forked_from: (f) =>
    `Forked the run from another after its step ${f('step')} (${f('mode')}${f('edited') === 'true' ? ', with changes' : ''}), as ${f('authority')}.`,
  forked: (f) => `Forked another run from this one (${f('mode')}), as ${f('authority')}.`,
  commanded: (f) => `Asked the run to ${f('command')}, as ${f('authority')}.`,
  command_refused: (f) => `Asked the run to ${f('command')}, as ${f('authority')}, and was refused.`,
  command_applied: (f) => `The ${f('command')} was carried out.`,
  command_expired: (f) => `The ${f('command')} was overtaken and never carried out.`,
  model_asked: (f) => `Asked the model for step ${f('step')}, attempt ${f('attempt')}.`,
  model_answered: (f) => `The model answered step ${f('step')}.`,
  model_failed: (f) => `The model gave no answer for step ${f('step')}, attempt ${f('attempt')}.`,
  model_lost: (f) => `The worker that asked the model for step ${f('step')} did not come back.`,
  effect_intended: (f) => `A call of ${f('tool')} was written down (class ${f('effect_class')}).`,
  asked_somebody: (f) => `Waited for ${f('quorum')} with the role ${f('role')} (${f('wait')}).`,
  somebody_said: (f) => `Said "${f('decision')}", as ${f('authority')}.`,
  wait_expired: () => 'Nobody decided in time; the wait ended as expired.',
  wait_superseded: () => 'The wait was superseded: what was to run had changed.',
  wait_withdrawn: () => 'The wait was taken back: nobody needed to decide any more.',
  approval_used: () => 'The approval was used by its call, once.',
  dispatched: (f) => `Sent the call of ${f('tool')}, attempt ${f('attempt')}.`,
  receipt_succeeded: (f) => `${f('tool')} answered: done.`,
  receipt_rejected: (f) => `${f('tool')} answered: refused.`,
  receipt_committed: (f) => `${f('tool')} turned out to have been done (${f('source')}).`,
  receipt_not_committed: (f) => `${f('tool')} turned out not to have been done (${f('source')}).`,
  attempt_unknown: (f) =>
    `Attempt ${f('attempt')} of ${f('tool')} got no clear answer: nobody knew whether it happened.`,
  attempt_lost: (f) =>
    `The worker of attempt ${f('attempt')} of ${f('tool')} did not come back: nobody knew whether it happened.`,
  attempt_in_progress: (f) => `${f('tool')} said that it was still at work on attempt ${f('attempt')}.`,
  attempt_not_sent: (f) => `Attempt ${f('attempt')} of ${f('tool')} never left.`,
  attempt_throttled: (f) => `${f('tool')} asked to come later, having done nothing.`,
  late_receipt: (f) => `An answer of ${f('tool')} came late and was kept as evidence.`,
  target_asked: (f) =>
    `Asked the target of ${f('tool')} what became of the key: ${f('answer')}${f('counts') === 'false' ? ', too early to say anything' : ''}.`,
  reconciled: (f) => `Settled the unknown call of ${f('tool')} as ${f('decided')} (${f('source')}).`,
  not_dispatched: (f) => `The call of ${f('tool')} ended without being sent.`,
  answered_from_receipt: (f) =>
    `The call of ${f('tool')} was answered from the receipt of another run; nothing was sent.`,
  retry_retry: (f) => `Attempt ${f('attempt')} of ${f('attempts_max')} stopped; another was to follow.`,
  retry_ask_again: (f) =>
    `Attempt ${f('attempt')} of ${f('attempts_max')} stopped; the target was to be asked again.`,
  retry_give_up: (f) => `Attempt ${f('attempt')} of ${f('attempts_max')} stopped; the series was given up.`,
  retry_ask_person: (f) =>
    `Attempt ${f('attempt')} of ${f('attempts_max')} stopped; a person was to be asked.`,
};

/** What happened, in one sentence. A kind that no sentence was written for is told by its name. */
export function storySentence({ kind, data }: StoryFacts): string {
  const fact = (name: string): string => {
    const value = data[name];
    return value === null || value === undefined ? '' : String(value as string | number | boolean);
  };
  return SAY[kind]?.(fact) ?? `${kind.replaceAll('_', ' ')}.`;
}

/** What the end of a run means, in one sentence. */
export function endSentence(
  state: string,
  counts: Readonly<Record<'happened' | 'did_not_happen' | 'never_sent' | 'unknown', number>>,
): string {
  const parts = [
    `${counts.happened} happened`,
    `${counts.did_not_happen} did not happen`,
    `${counts.never_sent} were never sent`,
    counts.unknown === 0 ? 'none is in doubt' : `of ${counts.unknown} nobody knows whether they happened`,
  ];
  return `The run ended as ${state}. Of its effects ${parts.slice(0, -1).join(', ')}, and ${parts.at(-1)}.`;
}
