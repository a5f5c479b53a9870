/** A slot in words, for those who do not see the picture or want the figures. */

import { count, many } from "../text/format";
import {
  budget,
  evicted,
  inRing,
  isReviewed,
  isRing,
  live,
  nextEntry,
  nextOverwritten,
  type Part,
  parts,
  type Shape,
  wraps,
  writeHead,
} from "./ring";

/** Return such as "4 sinks, 380 selected, ring of 128, write head at 37, wrapped 2 times". */
export function inWords(slot: Shape): string {
  const said = (empty: boolean) =>
    parts(slot)
      .filter((part) => EMPTY.has(part.kind) === empty)
      .flatMap((part) => PART_WORDS[part.kind](part, slot));
  return [...said(false), ...ringWords(slot), ...said(true)].join(", ");
}

const EMPTY = new Set<Part["kind"]>(["free", "unused"]);

const size = (part: Part) => part.to - part.from;

const PART_WORDS: Record<Part["kind"], (part: Part, slot: Shape) => string[]> = {
  sinks: (part) => [many(size(part), "sink")],
  selected: (part) => [`${count(size(part))} selected`],
  prompt: (part) => [`${many(size(part), "prompt token")} kept whole`],
  ring: () => [],
  reviewed: (part) => [`${many(size(part), "entry")} in use`],
  appended: (part) => [`${many(size(part), "entry")} in use`],
  free: (part) => [`${count(size(part))} free`],
  unused: (part) => [`${count(size(part))} outside this request's budget`],
};

function ringWords(slot: Shape): string[] {
  if (isReviewed(slot)) return [`a review evicts ${count(slot.again)} at a time`];
  if (!isRing(slot)) return ["nothing is overwritten"];
  const filled = inRing(slot) < slot.ring ? ` with ${count(inRing(slot))} filled` : "";
  return [
    `ring of ${count(slot.ring)}${filled}`,
    `write head at ${count(writeHead(slot))}`,
    `wrapped ${times(wraps(slot))}`,
  ];
}

export function times(n: number): string {
  return n === 0 ? "0 times" : many(n, "time");
}

/** Return what a part of the strip is, for a tooltip. */
export function partWords(part: Part): string {
  return `${MEANING[part.kind]}: entries ${count(part.from)} to ${count(part.to - 1)}`;
}

const MEANING: Record<Part["kind"], string> = {
  sinks: "Sinks, the first tokens of the prompt, never evicted",
  selected: "Selected, the prompt tokens with the highest scores",
  prompt: "The prompt, kept whole because it fits",
  ring: "Ring, in which each new token overwrites the oldest",
  reviewed: "Entries in use; reviews evict those with the lowest scores",
  appended: "Entries in use; this policy overwrites nothing",
  free: "Free entries",
  unused: "Entries of the slot outside this request's budget",
};

/** Return what happens with the next token. text: of the token that is overwritten, if known. */
export function nextWords(slot: Shape, text = ""): string {
  const position = nextOverwritten(slot);
  const entry = nextEntry(slot);
  if (position !== null) {
    const quoted = text.trim() ? ` (“${text.trim()}”)` : "";
    return `The next token overwrites token ${count(position)}${quoted}, the oldest in the ring.`;
  }
  if (isReviewed(slot) && live(slot) === budget(slot)) {
    return `A review evicts the ${count(slot.again)} entries with the lowest scores. Then the next token goes into entry ${count(entry)}.`;
  }
  return live(slot) < budget(slot)
    ? `The next token goes into entry ${count(entry)}, which is free.`
    : "The slot is full: the answer ends here.";
}

export function evictedWords(slot: Shape): string {
  const when = slot.seen === slot.prompt ? " when prefill ended" : "";
  return `${count(slot.seen)} tokens seen${when}, ${count(live(slot))} in the slot, ${count(evicted(slot))} evicted`;
}
