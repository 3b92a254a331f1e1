/** The middle of the values; NaN of none. */
export function median(values: readonly number[]): number {
  return quantile(values, 0.5);
}

/** The value that this share of the values does not exceed, between neighbours in a straight line; NaN of none. */
export function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const place = (sorted.length - 1) * share;
  const below = sorted[Math.floor(place)] ?? Number.NaN;
  const above = sorted[Math.ceil(place)] ?? Number.NaN;
  return below + (above - below) * (place - Math.floor(place));
}

/** A figure that was measured once a round: the middle, and how far the rounds lie apart. */
export interface Figure {
  readonly median: number;
  readonly lowest: number;
  readonly highest: number;
}

export function figureOf(rounds: readonly number[]): Figure {
  return {
    median: round(median(rounds)),
    lowest: round(Math.min(...rounds)),
    highest: round(Math.max(...rounds)),
  };
}

/** Four digits are more than any of this is worth; JSON with more would only look exact. */
export function round(value: number): number {
  return Number.isFinite(value) ? Number(value.toPrecision(4)) : Number.NaN;
}
