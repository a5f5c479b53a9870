/** Which budgets a comparison has, and what an answer under one holds. */

import type { Usage } from "../api/types";

/** Budgets below it are refused with most settings, and keep nothing of a document. */
const FEWEST = 16;

/**
 * Return budgets for a prompt of so many tokens, ascending: an eighth, a quarter and a half of it, all that a slot
 * holds, and all that `full` holds if only that holds the prompt. If a slot holds less than a half, the shares are
 * smaller ones.
 */
export function budgets(prompt: number, capacity: number, full: number): number[] {
  let half = prompt / 2;
  while (half >= capacity) half /= 2;
  const shares = [half / 4, half / 2, half].map((share) => Math.max(FEWEST, Math.floor(share)));
  return [...new Set(shares)]
    .filter((share) => share < Math.min(prompt, capacity))
    .concat(capacity, prompt > capacity && prompt < full ? full : []);
}

/** Return how many entries hold a token at the end of an answer. The last sampled token is never fed. */
export function held({ prompt_tokens, completion_tokens, kv }: Usage): number {
  const fed = prompt_tokens + Math.max(0, completion_tokens - 1);
  return kv ? Math.min(fed - kv.evicted, kv.capacity) : fed;
}
