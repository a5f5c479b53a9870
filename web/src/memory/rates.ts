/** Rates, from the difference between the newest ticks. */

import type { Tick } from "../api/types";

/** Seconds. */
export const WINDOW = 2.5;

export interface Rates {
  output: number;
  prompt: number;
  steps: number;
}

/** Return tokens and steps per second over the last seconds; zeros until two ticks came. */
export function rates(ticks: readonly Tick[]): Rates {
  const last = ticks.at(-1);
  const first = last && (ticks.find((one) => last.t - one.t <= WINDOW && one !== last) ?? ticks.at(-2));
  if (!last || !first || last.t <= first.t) return { output: 0, prompt: 0, steps: 0 };
  // An engine that was started again counts from 0.
  const per = (name: "tokens" | "prompt_tokens" | "steps") =>
    Math.max(0, last[name] - first[name]) / (last.t - first.t);
  // Ticks come seldom while nothing happens: the last one says whether anything still does.
  const output = last.running > 0;
  const prefill = last.prefilling > 0;
  return {
    output: output ? per("tokens") : 0,
    prompt: prefill ? per("prompt_tokens") : 0,
    steps: output || prefill ? per("steps") : 0,
  };
}
