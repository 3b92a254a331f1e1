import type { Run, RunEvent } from '../api-types.js';
import { factsOf, timeOf } from '../output.js';
import { printable } from '../io.js';

/** A run for people: what it is, where it stands, whom it waits for, what it did. */
export function factsOfRun(run: Run): string[] {
  const { identity, execution, control, effects, terminal } = run;
  const lines = factsOf({
    run: run.run_id,
    agent: `${identity.agent} ${identity.agent_version.slice(0, 12)}`,
    job: identity.job_id,
    parent: identity.parent_run_id,
    'asked for by': identity.actor_id,
    state: `${execution.state}${execution.reason === null ? '' : ` (${execution.reason})`}`,
    control: execution.control,
    turn: `${identity.turn}, step ${execution.step}`,
    admitted: timeOf(execution.admitted_at),
    started: timeOf(execution.started_at),
    ended: timeOf(execution.ended_at),
    deadline: execution.ended_at === null ? timeOf(control.deadline_at) : null,
    effects: countsOf(effects.by_state),
    children: run.children.total === 0 ? null : countsOf(run.children.by_state),
    answer: terminal === null ? null : textOf(terminal.last_message),
    'as of': `event ${run.freshness.event_seq}, ${timeOf(run.freshness.as_of)}`,
  });
  const waits = control.interrupts.map(
    ({ interrupt_id, kind, tool, required_role, expires_at }) =>
      `waits    ${interrupt_id}  ${kind} of ${printable(tool)} by ${required_role}, until ${timeOf(expires_at)}`,
  );
  const unknown = effects.open
    .filter(({ state }) => state === 'unknown')
    .map(
      ({ effect_id, tool, reconciliation }) =>
        `unknown  ${effect_id}  ${printable(tool)}, owned by ${printable(reconciliation?.owner ?? 'nobody')}`,
    );
  return [...lines, ...waits, ...unknown];
}

const countsOf = (byState: Readonly<Record<string, number>>): string =>
  Object.entries(byState)
    .map(([state, count]) => `${count} ${state}`)
    .join(', ');

/** The text of a message of the transcript, where it has one. */
function textOf(message: unknown): string | null {
  const { parts } = (message ?? {}) as { parts?: unknown };
  if (!Array.isArray(parts)) return null;
  const texts = (parts as { type?: unknown; text?: unknown }[]).map(({ text }) => text);
  return texts.filter((text) => typeof text === 'string').join('\n') || null;
}

/** One event in one line: time, sequence, type, and what it is about. */
export function lineOfEvent({ at, seq, type, data }: RunEvent): string {
  return `${at.slice(11, 19)}  ${String(seq).padStart(4)}  ${type.padEnd(22)}  ${printable(wordsOf(type, data))}`.trimEnd();
}

const WORDS_MAX = 160;

function wordsOf(type: string, data: unknown): string {
  const fields = (data ?? {}) as Record<string, unknown>;
  if (type === 'run.transition') {
    return `${String(fields['from'])} → ${String(fields['to'])} (${String(fields['reason'])})`;
  }
  if (type === 'model.message') return cut(textOf(fields['message']) ?? 'calls tools');
  const told = Object.entries(fields).filter(([, value]) =>
    ['string', 'number', 'boolean'].includes(typeof value),
  );
  return cut(told.map(([name, value]) => `${name}=${String(value)}`).join(' '));
}

function cut(text: string): string {
  const line = text.replaceAll(/\s+/g, ' ');
  return line.length > WORDS_MAX ? `${line.slice(0, WORDS_MAX - 1)}…` : line;
}
