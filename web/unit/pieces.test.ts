import { describe, expect, it } from "vitest";
import type { Shape } from "../src/cache/ring";
import { LEVELS, level, overview, passages, roleOf, runs, whole } from "../src/text/pieces";

const SLOT: Shape = {
  policy: "snapstream",
  prompt: 12,
  seen: 13,
  sinks: 1,
  selected: 2,
  protected: 3,
  base: 1,
  ring: 3,
  again: 3,
  capacity: 6,
};

describe("shades", () => {
  it("keep the first for none and the last for all", () => {
    for (const of of [1, 2, 5, 90]) {
      const all = Array.from({ length: of + 1 }, (_, kept) => level(kept, of));
      expect(all[0]).toBe(0);
      expect(all[of]).toBe(LEVELS);
      expect(all.slice(1, of).every((one) => one > 0 && one < LEVELS)).toBe(true);
      expect([...all].sort((a, b) => a - b)).toEqual(all);
    }
  });
});

describe("a prompt's tokens as text", () => {
  const texts = ["<|im_start|>", "user", "\n", "The", " key", " is", " under", " it", ".", "<|im_end|>", "\n", "go"];
  const counts = [9, 0, 0, 3, 9, 9, 0, 0, 0, 9, 9, 9];

  it("joins neighbours with one shade and loses nothing", () => {
    const found = runs(texts, counts, 9, SLOT);
    expect(found.map((run) => run.text).join("")).toBe(texts.join(""));
    expect(found.map(({ from, to }) => [from, to])).toEqual([
      [0, 1],
      [1, 3],
      [3, 4],
      [4, 6],
      [6, 9],
      [9, 10],
      [10, 12],
    ]);
    expect(found.map((run) => run.level)).toEqual([5, 0, 2, 5, 0, 5, 5]);
    expect(found.filter((run) => run.special).map((run) => run.text)).toEqual(["<|im_start|>", "<|im_end|>"]);
  });

  it("knows the sinks and the ring", () => {
    const roles = texts.map((_, p) => roleOf(SLOT, p));
    expect(roles).toEqual(["sink", ...Array(8).fill("prompt"), "ring", "ring", "ring"]);
  });

  it("shows a character of several tokens once", () => {
    expect(whole(["a", "\uFFFD", "\uFFFD\uFFFD", "b", "\uFFFD"]).join("")).toBe("a\uFFFDb\uFFFD");
  });

  it("finds the passages that were kept most", () => {
    const [best] = passages(texts, counts, 9, [1, 10], 3, 3);
    expect(best?.text).toBe("The key is under it.");
    expect(best?.share).toBeCloseTo((3 + 9 + 9) / (6 * 9));
  });
});

describe("the overview", () => {
  it("has the mean of each part", () => {
    expect(overview([4, 0, 2, 2, 0, 0], 4, 3)).toEqual([0.5, 0.5, 0]);
  });

  it("has no more parts than tokens", () => {
    expect(overview([1, 0], 1, 100)).toEqual([1, 0]);
  });
});
