/** The server's state in one sentence. */

import type { Point } from "../api/types";
import { count, many } from "../text/format";

export type Tone = "good" | "busy" | "bad" | "unknown";

export interface Verdict {
  tone: Tone;
  words: string;
}

export interface State {
  /** Whether the page hears from the server. */
  connected: boolean;
  alive: boolean;
  running: number;
  waiting: number;
  slots: number;
  interval: number;
}

const RECENT = 300;
const SLOW_TTFT = 10;

/** Return the worst that is true now. points: oldest first. */
export function verdict(points: readonly Point[], state: State): Verdict {
  return CHECKS.map((check) => check(points, state)).find((found) => found !== null) ?? allWell(points, state);
}

type Check = (points: readonly Point[], state: State) => Verdict | null;

const CHECKS: Check[] = [
  (_, s) => (s.connected ? null : { tone: "unknown", words: "No connection to the server: the figures are old." }),
  (_, s) => (s.alive ? null : { tone: "bad", words: "The engine is down and is being started again." }),
  (points, s) => {
    const rejected = sum(recent(points, s), "rejected");
    return rejected > 0
      ? { tone: "bad", words: `Overloaded: ${many(rejected, "request")} rejected in the last 5 minutes.` }
      : null;
  },
  (points, s) => {
    const errors = sum(recent(points, s), "errors");
    return errors > 0 ? { tone: "bad", words: `${many(errors, "request")} failed in the last 5 minutes.` } : null;
  },
  (points, s) =>
    grows(points, s)
      ? { tone: "bad", words: `The queue grows: ${count(s.waiting)} waiting for ${many(s.slots, "slot")}.` }
      : null,
  (_, s) => (s.waiting > 0 ? { tone: "busy", words: `Busy: ${many(s.waiting, "request")} waiting for a slot.` } : null),
  (points, s) => {
    const slow = recent(points, s).findLast((one) => one.ttft.p95 !== null)?.ttft.p95 ?? 0;
    return slow > SLOW_TTFT && s.running > 0
      ? { tone: "busy", words: `Slow starts: 5% of answers begin after ${count(slow)} s or more.` }
      : null;
  },
  (_, s) => (s.running >= s.slots ? { tone: "busy", words: "Every slot is in use; nothing waits." } : null),
];

function allWell(points: readonly Point[], s: State): Verdict {
  const requests = sum(points, "requests");
  const said = s.running > 0 ? `${count(s.running)} of ${many(s.slots, "slot")} in use` : "idle";
  return { tone: "good", words: `All well: ${said}, ${many(requests, "request")} in the last hour.` };
}

function recent(points: readonly Point[], s: State): readonly Point[] {
  return points.slice(-Math.ceil(RECENT / s.interval));
}

function sum(points: readonly Point[], name: "rejected" | "errors" | "requests"): number {
  return points.reduce((total, point) => total + point[name], 0);
}

/** Whether more wait now than in the minute before, and that minute had a queue already. */
function grows(points: readonly Point[], s: State): boolean {
  const minute = Math.ceil(60 / s.interval);
  const mean = (some: readonly Point[]) =>
    some.reduce((total, one) => total + one.waiting, 0) / Math.max(1, some.length);
  const before = mean(points.slice(-2 * minute, -minute));
  const now = mean(points.slice(-minute));
  return s.waiting > 0 && points.length >= minute && now > 1 && now > 1.5 * before;
}
