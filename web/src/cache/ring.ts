/**
 * Where a slot keeps its tokens, from the integers of its layout (docs/policies.md).
 *
 * A slot's first `protected` entries are written once. In the rest, each new token overwrites the oldest one; or reviews
 * evict the `again` entries with the lowest scores, so that the last ones are free.
 */

import type { SlotState } from "../api/types";

export type Shape = Pick<
  SlotState,
  "policy" | "prompt" | "seen" | "sinks" | "selected" | "protected" | "base" | "ring" | "again" | "capacity"
>;

/** Policies that append to the rest of a slot and end when it is full. */
const APPENDING = new Set(["full", "arkvale", "snapkv"]);

export function isRing(slot: Shape): boolean {
  return !APPENDING.has(slot.policy) && !isReviewed(slot);
}

/** Return whether reviews evict entries by their scores, and not the newest token the oldest one. */
export function isReviewed(slot: Shape): boolean {
  return slot.again < slot.ring;
}

/** Return the entry of the token at position `p`. */
export function entryOf(slot: Shape, p: number): number {
  const beyond = p - slot.base;
  if (beyond < slot.ring || slot.ring === 0) return slot.protected + beyond;
  return budget(slot) - slot.again + ((beyond - slot.ring) % slot.again);
}

/** Return how many entries hold a token; they are the first ones. */
export function live(slot: Shape): number {
  const beyond = slot.seen - slot.base - slot.ring;
  if (isReviewed(slot) && beyond > 0) return budget(slot) - slot.again + ((beyond - 1) % slot.again) + 1;
  return Math.max(0, Math.min(slot.protected + slot.seen - slot.base, budget(slot)));
}

/** Return how many entries the request may hold. */
export function budget(slot: Shape): number {
  return slot.protected + slot.ring;
}

/** Return how many of the ring's entries hold a token. */
export function inRing(slot: Shape): number {
  return Math.max(0, live(slot) - slot.protected);
}

/** Return the place in the ring, from 0, that the next token takes. */
export function writeHead(slot: Shape): number {
  return slot.ring === 0 ? 0 : Math.max(0, slot.seen - slot.base) % slot.ring;
}

/** Return the entry that the next token takes. */
export function nextEntry(slot: Shape): number {
  return entryOf(slot, slot.seen);
}

/** Return how often generated tokens returned to the ring's first entry. */
export function wraps(slot: Shape): number {
  if (!isRing(slot) || slot.ring === 0) return 0;
  const starts = (seen: number) => Math.max(0, Math.floor((seen - 1 - slot.base) / slot.ring));
  return starts(slot.seen) - starts(slot.prompt);
}

/** Return the position whose token the next one overwrites; null while there is a free entry. */
export function nextOverwritten(slot: Shape): number | null {
  const isFull = slot.ring > 0 && inRing(slot) === slot.ring;
  return isRing(slot) && isFull ? slot.seen - slot.ring : null;
}

/** Return how many of the tokens seen are no longer in the slot. */
export function evicted(slot: Shape): number {
  return Math.max(0, slot.seen - live(slot));
}

/** Return whether the prompt was kept whole, so that nothing of it had to be selected. */
export function keepsWholePrompt(slot: Shape): boolean {
  return slot.prompt <= budget(slot) && slot.selected === 0;
}

/** Positions [from, to) of prompt tokens that went into the ring and have been overwritten since. */
export function overwrittenPrompt(slot: Shape): [number, number] {
  if (!isRing(slot)) return [0, 0];
  const from = Math.max(slot.base, slot.prompt - slot.ring);
  return [from, Math.max(from, Math.min(slot.prompt, slot.seen - slot.ring))];
}

export type PartKind = "sinks" | "selected" | "prompt" | "ring" | "reviewed" | "appended" | "free" | "unused";

/** Consecutive entries of one kind: [from, to). */
export interface Part {
  kind: PartKind;
  from: number;
  to: number;
}

/** Return the kind of the entries that come after the ones that are written once. */
export function restKind(slot: Shape): PartKind {
  if (isReviewed(slot)) return "reviewed";
  return isRing(slot) ? "ring" : "appended";
}

/** Return a slot's parts in the order of its entries, without empty ones. */
export function parts(slot: Shape): Part[] {
  const filled = live(slot);
  const fixed = Math.min(slot.protected, filled);
  const isWhole = keepsWholePrompt(slot);
  const sinks = isWhole ? fixed : Math.min(slot.sinks, fixed);
  const kinds: [PartKind, number, number][] = [
    [isWhole ? "prompt" : "sinks", 0, sinks],
    ["selected", sinks, fixed],
    [restKind(slot), fixed, filled],
    ["free", filled, budget(slot)],
    ["unused", budget(slot), Math.max(slot.capacity, budget(slot))],
  ];
  return kinds.filter(([, from, to]) => from < to).map(([kind, from, to]) => ({ kind, from, to }));
}
