/** Columns of the plots, from the server's points. */

import type { AlignedData } from "uplot";
import type { History, Point } from "../api/types";

/** A line is drawn over so many intervals without a value; a longer gap stays one. */
const BRIDGED = 24;

export type Value = (point: Point) => number | null;

/** Return seconds before now, and each value at that time: null where a line ends, undefined where it goes on. */
export function columns(history: History, values: readonly Value[]): AlignedData {
  const { points, now } = history;
  return [points.map((one) => one.t - now), ...values.map((value) => bridged(points.map(value)))] as AlignedData;
}

/** Replace nulls in gaps of at most `longest` by undefined, over which a plot draws its line. */
export function bridged(values: readonly (number | null)[], longest = BRIDGED): (number | null | undefined)[] {
  const found: (number | null | undefined)[] = [...values];
  let last = -1;
  values.forEach((value, i) => {
    if (value === null) return;
    if (last >= 0 && i - last - 1 <= longest) found.fill(undefined, last + 1, i);
    last = i;
  });
  return found;
}

/** Return the places of values that no line touches, because there is a gap on both sides. */
export function isolated(values: ArrayLike<number | null | undefined>): number[] {
  const all = Array.from(values);
  const ends = (from: number, step: number) => {
    let i = from + step;
    while (i in all && all[i] === undefined) i += step;
    return (all[i] ?? null) === null;
  };
  return all.flatMap((value, i) => (typeof value === "number" && ends(i, -1) && ends(i, 1) ? [i] : []));
}

/** Intervals of a mean. */
const SMOOTHED = 3;

/** Return the seconds of a mean. */
export function smoothed(history: History): number {
  return SMOOTHED * history.interval;
}

/** Return a count's value per second, mean over a few intervals so that a plot can be read. */
export function smooth(history: History, name: "output_tokens" | "prompt_tokens", over = SMOOTHED): (number | null)[] {
  return history.points.map((_, i, all) => {
    const some = all.slice(Math.max(0, i - over + 1), i + 1);
    return some.reduce((sum, one) => sum + one[name], 0) / (some.length * history.interval);
  });
}

/** Return the newest value that is not null. */
export function newest(points: readonly Point[], value: Value): number | null {
  const found = points.findLast((one) => value(one) !== null);
  return found ? value(found) : null;
}

export function sum(
  points: readonly Point[],
  name: "requests" | "invalid" | "errors" | "rejected" | "evicted" | "cancelled",
): number {
  return points.reduce((total, one) => total + one[name], 0);
}
