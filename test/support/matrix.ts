/** What a pure step answers, of whichever machine. */
type Answer =
  | { readonly kind: 'moved'; readonly to: string }
  | { readonly kind: 'same' }
  | { readonly kind: 'refused'; readonly code: string };

/**
 * A whole machine as text: a line a state, a column an event. A name is where the event leads, `=` changes nothing,
 * `-` is refused, `x` is refused because the run has ended.
 */
export function matrixOf<S extends string, E extends string>(
  states: readonly S[],
  events: readonly E[],
  short: Readonly<Record<S | E, string>>,
  step: (state: S, event: E) => Answer,
): string {
  const width = Math.max(...states.map((state) => state.length)) + 1;
  const line = (first: string, cells: readonly string[]): string =>
    `${first.padEnd(width)}${cells.map((cell) => cell.padEnd(5)).join('')}`.trimEnd();
  const cellOf = (answer: Answer): string => {
    if (answer.kind === 'moved') return short[answer.to as S];
    if (answer.kind === 'same') return '=';
    return answer.code === 'run_ended' ? 'x' : '-';
  };
  const head = line(
    '',
    events.map((event) => short[event]),
  );
  const rows = states.map((state) =>
    line(
      state,
      events.map((event) => cellOf(step(state, event))),
    ),
  );
  return `\n${[head, ...rows].join('\n')}\n`;
}
