import { describe, expect, it } from "vitest";
import type { Point } from "../src/api/types";
import { bridged, isolated } from "../src/dashboard/series";
import { type State, verdict } from "../src/dashboard/verdict";

const NONE = { p50: null, p95: null, p99: null };
const QUIET: Point = {
  t: 0,
  prompt_tokens: 0,
  output_tokens: 0,
  requests: 1,
  errors: 0,
  rejected: 0,
  invalid: 0,
  evicted: 0,
  cancelled: 0,
  running: 0,
  waiting: 0,
  free_slots: 2,
  ttft: NONE,
  tpot: NONE,
  step: NONE,
};
const STATE: State = { connected: true, alive: true, running: 0, waiting: 0, slots: 2, interval: 5 };
const HOUR = Array.from({ length: 720 }, () => QUIET);

function last(change: Partial<Point>, times = 1): Point[] {
  return [...HOUR.slice(times), ...Array.from({ length: times }, () => ({ ...QUIET, ...change }))];
}

describe("the verdict", () => {
  it("is good for a server that is idle", () => {
    expect(verdict(HOUR, STATE)).toEqual({ tone: "good", words: "All well: idle, 720 requests in the last hour." });
  });

  it("names the number of rejected requests", () => {
    expect(verdict(last({ rejected: 3 }), STATE).words).toContain("3 requests rejected");
  });

  it("forgets a refusal after five minutes", () => {
    const points = HOUR.map((one, i) => (i === 500 ? { ...one, rejected: 3 } : one));
    expect(verdict(points, STATE).tone).toBe("good");
  });

  it("sees a queue that grows", () => {
    const points = HOUR.map((one, i) => ({ ...one, waiting: Math.max(0, i - 700) }));
    expect(verdict(points, { ...STATE, running: 2, waiting: 19 }).words).toBe(
      "The queue grows: 19 waiting for 2 slots.",
    );
  });

  it("does not call a short queue growing", () => {
    expect(verdict(HOUR, { ...STATE, running: 2, waiting: 1 }).tone).toBe("busy");
  });

  it("puts a dead engine before everything that the server counts", () => {
    expect(verdict(last({ rejected: 3 }), { ...STATE, alive: false }).words).toContain("engine is down");
  });
});

describe("lines of plots", () => {
  it("go over short gaps and end at long ones", () => {
    expect(bridged([null, 1, null, null, 2, null, null, null, 3, null], 2)).toEqual([
      null,
      1,
      undefined,
      undefined,
      2,
      null,
      null,
      null,
      3,
      null,
    ]);
  });

  it("leave single values, which are drawn as points", () => {
    expect(isolated([1, null, 2, undefined, 3, null, 4])).toEqual([0, 6]);
    expect(isolated([null, 5])).toEqual([1]);
  });
});
