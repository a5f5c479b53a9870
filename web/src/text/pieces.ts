/** A prompt's tokens as runs of text that were kept equally often. */

import type { Shape } from "../cache/ring";
import { isRing, keepsWholePrompt } from "../cache/ring";

/** Shades of the picture: 0 is evicted everywhere, LEVELS is kept everywhere. */
export const LEVELS = 5;

export type Role = "sink" | "ring" | "prompt";

/** Consecutive tokens [from, to) with one role and one shade. */
export interface Run {
  from: number;
  to: number;
  text: string;
  level: number;
  role: Role;
  special: boolean;
}

/** Return the shade of a token that `kept` of `of` pairs keep: 0 only if none does, LEVELS only if all do. */
export function level(kept: number, of: number): number {
  if (kept <= 0) return 0;
  if (kept >= of) return LEVELS;
  return 1 + Math.min(LEVELS - 2, Math.floor(((LEVELS - 1) * kept) / of));
}

/** Return which part of a slot keeps the prompt token at position `p`. */
export function roleOf(slot: Shape | null, p: number): Role {
  if (!slot || !isRing(slot) || keepsWholePrompt(slot)) return "prompt";
  if (p < slot.sinks) return "sink";
  return p >= Math.max(slot.base, slot.prompt - slot.ring) ? "ring" : "prompt";
}

const SPECIAL = /^<[|｜].*[|｜]>$|^<\/?s>$/u;

/** Join the texts of consecutive tokens with the same role and shade. */
export function runs(texts: readonly string[], counts: readonly number[], of: number, slot: Shape | null): Run[] {
  const found: Run[] = [];
  whole(texts).forEach((text, p) => {
    const next = { level: level(counts[p] ?? 0, of), role: roleOf(slot, p), special: SPECIAL.test(text) };
    const last = found.at(-1);
    const joins = last && last.level === next.level && last.role === next.role && !last.special && !next.special;
    if (joins) {
      last.text += text;
      last.to = p + 1;
    } else {
      found.push({ from: p, to: p + 1, text, ...next });
    }
  });
  return found;
}

const INCOMPLETE = "\uFFFD";

/** Show bytes of a character that several tokens share once, at its first token. */
export function whole(texts: readonly string[]): string[] {
  return texts.map((text, p) => {
    const continues = text.startsWith(INCOMPLETE) && (texts[p - 1]?.endsWith(INCOMPLETE) ?? false);
    return continues ? text.replace(/^\uFFFD+/, "") : text.replace(/\uFFFD+/g, INCOMPLETE);
  });
}

/** Return the mean share of (layer, head) pairs that kept each of `buckets` equal parts of the prompt. */
export function overview(counts: readonly number[], of: number, buckets: number): number[] {
  const n = counts.length;
  return Array.from({ length: Math.min(buckets, n) }, (_, i) => {
    const from = Math.floor((i * n) / Math.min(buckets, n));
    const to = Math.floor(((i + 1) * n) / Math.min(buckets, n));
    const sum = counts.slice(from, to).reduce((total, kept) => total + kept, 0);
    return sum / (of * Math.max(1, to - from));
  });
}

export interface Passage {
  from: number;
  to: number;
  text: string;
  share: number;
}

/**
 * Return the sentences or lines of [from, to) that were kept most, at most `limit`, best first.
 *
 * share: mean share of pairs that kept the passage's tokens. Passages under `least` tokens are left out.
 */
export function passages(
  texts: readonly string[],
  counts: readonly number[],
  of: number,
  [from, to]: [number, number],
  limit: number,
  least = 8,
): Passage[] {
  const found: Passage[] = [];
  let start = from;
  for (let p = from; p < to; p++) {
    if (p + 1 < to && !ENDS.test(texts[p] ?? "") && !SPECIAL.test(texts[p] ?? "")) continue;
    const kept = counts.slice(start, p + 1).reduce((sum, n) => sum + n, 0);
    const text = texts
      .slice(start, p + 1)
      .join("")
      .trim();
    if (p + 1 - start >= least) found.push({ from: start, to: p + 1, text, share: kept / (of * (p + 1 - start)) });
    start = p + 1;
  }
  return found.sort((a, b) => b.share - a.share).slice(0, limit);
}

const ENDS = /[.!?\n]\s*$/;
