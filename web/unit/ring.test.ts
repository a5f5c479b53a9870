/** The ring's geometry, against slots that are written token by token. */

import { describe, expect, it } from "vitest";
import {
  budget,
  entryOf,
  evicted,
  inRing,
  isReviewed,
  isRing,
  keepsWholePrompt,
  live,
  nextEntry,
  nextOverwritten,
  overwrittenPrompt,
  parts,
  type Shape,
  wraps,
  writeHead,
} from "../src/cache/ring";
import { inWords, nextWords } from "../src/cache/words";

/** A slot as an array: what each entry holds, and how often a generated token took the ring's first entry again. */
interface Written {
  entries: (number | null)[];
  wraps: number;
}

/** Write a prompt as snapstream does, then tokens one by one at a cursor that knows no formula. */
function write(sinks: number, selected: number, ring: number, prompt: number, generated: number): [Shape, Written] {
  const capacity = sinks + selected + ring;
  const entries: (number | null)[] = Array(capacity).fill(null);
  const whole = prompt <= capacity;
  const fixed = whole ? Math.max(sinks, Math.min(prompt, sinks + selected)) : sinks + selected;
  const base = whole ? fixed : sinks;
  let cursor = fixed;
  const next = () => {
    cursor += 1;
    if (cursor === capacity) cursor = fixed;
  };
  if (whole) {
    for (let p = 0; p < prompt; p++) {
      if (p < fixed) entries[p] = p;
      else {
        entries[cursor] = p;
        next();
      }
    }
  } else {
    for (let e = 0; e < fixed; e++) entries[e] = e < sinks ? e : prompt - ring - 1; // which ones does not matter here
    for (let p = base; p < prompt; p++) {
      entries[cursor] = p;
      next();
    }
  }
  let wrapped = 0;
  for (let p = prompt; p < prompt + generated; p++) {
    if (p < base) {
      entries[p] = p; // a prompt shorter than the sinks
      continue;
    }
    if (cursor === fixed && entries[cursor] !== null) wrapped += 1;
    entries[cursor] = p;
    next();
  }
  const shape: Shape = {
    policy: "snapstream",
    prompt,
    seen: prompt + generated,
    sinks: whole ? Math.min(prompt, fixed) : sinks,
    selected: whole ? 0 : selected,
    protected: fixed,
    base,
    ring: capacity - fixed,
    again: capacity - fixed,
    capacity,
  };
  return [shape, { entries, wraps: wrapped }];
}

const CASES: [number, number, number, number, number][] = [];
for (const [sinks, selected, ring] of [
  [1, 3, 4],
  [4, 8, 5],
  [2, 0, 3],
  [1, 1, 1],
] as const) {
  for (const prompt of [1, 2, 5, 9, 16, 17, 18, 27, 40]) {
    for (const generated of [0, 1, 2, 3, 4, 5, 7, 11, 23]) CASES.push([sinks, selected, ring, prompt, generated]);
  }
}

describe("a slot that is written token by token", () => {
  it.each(CASES)("agrees: sinks %i, selected %i, ring %i, prompt %i, generated %i", (...sizes) => {
    const [shape, written] = write(...sizes);
    const held = written.entries.filter((p) => p !== null);
    expect(live(shape)).toBe(held.length);
    expect(evicted(shape)).toBe(shape.seen - held.length);
    expect(wraps(shape)).toBe(written.wraps);
    const ring = written.entries.slice(shape.protected);
    expect(inRing(shape)).toBe(ring.filter((p) => p !== null).length);
    for (let p = Math.max(shape.base, shape.seen - shape.ring); p < shape.seen; p++) {
      expect(written.entries[entryOf(shape, p)]).toBe(p);
    }
  });

  it.each(CASES)("takes the next token at the head: %i %i %i %i %i", (...sizes) => {
    const [shape, written] = write(...sizes);
    const [, later] = write(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4] + 1);
    const changed = later.entries.findIndex((p, e) => p !== written.entries[e]);
    expect(nextEntry(shape)).toBe(changed);
    if (shape.seen >= shape.base) expect(shape.protected + writeHead(shape)).toBe(changed);
    expect(nextOverwritten(shape)).toBe(written.entries[changed] ?? null);
  });

  it.each(CASES)("has lost the prompt's first ring tokens: %i %i %i %i %i", (...sizes) => {
    const [shape, written] = write(...sizes);
    const [from, to] = overwrittenPrompt(shape);
    const ring = new Set(written.entries.slice(shape.protected));
    const start = Math.max(shape.base, shape.prompt - shape.ring);
    const gone = [];
    for (let p = start; p < shape.prompt; p++) if (!ring.has(p)) gone.push(p);
    expect(gone).toEqual(Array.from({ length: to - from }, (_, i) => from + i));
  });
});

describe("parts of a slot", () => {
  it.each(CASES)("cover it without gaps: %i %i %i %i %i", (...sizes) => {
    const [shape] = write(...sizes);
    let end = 0;
    for (const part of parts(shape)) {
      expect(part.from).toBe(end);
      expect(part.to).toBeGreaterThan(part.from);
      end = part.to;
    }
    expect(end).toBe(shape.capacity);
  });

  it("name a prompt that is kept whole", () => {
    const [shape] = write(4, 8, 4, 10, 2);
    expect(keepsWholePrompt(shape)).toBe(true);
    expect(parts(shape).map((part) => part.kind)).toEqual(["prompt", "ring", "free"]);
  });

  it("show what a smaller budget leaves of a slot", () => {
    const [shape] = write(4, 8, 4, 40, 2);
    const kinds = parts({ ...shape, capacity: 100 });
    expect(kinds.at(-1)).toEqual({ kind: "unused", from: 16, to: 100 });
    expect(budget(shape)).toBe(16);
  });

  it("have no ring if nothing is overwritten", () => {
    const full: Shape = {
      ...write(1, 3, 4, 4, 2)[0],
      policy: "full",
      sinks: 0,
      protected: 0,
      base: 0,
      ring: 8,
      again: 8,
    };
    expect(isRing(full)).toBe(false);
    expect(parts(full).map((part) => part.kind)).toEqual(["appended", "free"]);
    expect(wraps(full)).toBe(0);
    expect(inWords(full)).toBe("6 entries in use, nothing is overwritten, 2 free");
  });
});

/** Append tokens to a list; a review of a full one leaves all but `evicts` of them, wherever these were. */
function append(capacity: number, evicts: number, prompt: number, generated: number): [Shape, number] {
  let held = Math.min(prompt, capacity - 2);
  const protectedEntries = Math.min(held, 3);
  const first = held;
  for (let p = 0; p < generated; p++) {
    if (held === capacity) held -= evicts;
    held += 1;
  }
  const shape: Shape = {
    policy: "scissorhands",
    prompt,
    seen: prompt + generated,
    sinks: protectedEntries,
    selected: 0,
    protected: protectedEntries,
    base: prompt - first + protectedEntries,
    ring: capacity - protectedEntries,
    again: evicts,
    capacity,
  };
  return [shape, held];
}

describe("a slot with reviews", () => {
  const cases = [1, 2, 4].flatMap((evicts) =>
    Array.from({ length: 20 }, (_, generated) => [evicts, generated] as const),
  );

  it.each(cases)("agrees if a review evicts %i and %i were generated", (evicts, generated) => {
    const [slot, held] = append(12, evicts, 30, generated);
    expect(isReviewed(slot)).toBe(true);
    expect(isRing(slot)).toBe(false);
    expect(live(slot)).toBe(held);
    expect(evicted(slot)).toBe(slot.seen - held);
    expect(nextEntry(slot)).toBe(held === 12 ? 12 - evicts : held);
    expect(nextOverwritten(slot)).toBe(null);
  });

  it("says that a review evicts, and no token overwrites another", () => {
    const [slot] = append(12, 4, 30, 2);
    expect(inWords(slot)).toBe("3 sinks, 9 entries in use, a review evicts 4 at a time");
    expect(nextWords(slot)).toBe(
      "A review evicts the 4 entries with the lowest scores. Then the next token goes into entry 8.",
    );
  });
});

describe("words", () => {
  const slot: Shape = {
    policy: "snapstream",
    prompt: 7000,
    seen: 7205,
    sinks: 4,
    selected: 380,
    protected: 384,
    base: 4,
    ring: 128,
    again: 128,
    capacity: 512,
  };

  it("say what the picture shows", () => {
    const head = (7205 - 4) % 128;
    expect(inWords(slot)).toBe(`4 sinks, 380 selected, ring of 128, write head at ${head}, wrapped 2 times`);
  });

  it("say what the next token overwrites", () => {
    expect(nextWords(slot, " key")).toContain(`overwrites token 7,077 (“key”)`);
    expect(
      nextWords({
        ...slot,
        prompt: 100,
        seen: 100,
        sinks: 100,
        selected: 0,
        protected: 100,
        base: 100,
        ring: 412,
        again: 412,
      }),
    ).toBe("The next token goes into entry 100, which is free.");
  });
});
