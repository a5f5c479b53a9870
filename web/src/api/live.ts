/** The server's live state: one event stream for the whole page. */

import { effect, signal } from "@preact/signals";
import { ApiError, request } from "./client";
import { events } from "./sse";
import type { Hello, Tick } from "./types";

export const hello = signal<Hello | null>(null);
export const tick = signal<Tick | null>(null);
export const connection = signal<"connecting" | "live" | "lost">("connecting");
/** Why there is no connection, in words. */
export const lostWhy = signal("");
/** The model that the page talks to; "" is the server's first. */
export const model = signal("");

const KEPT_TICKS = 24;
const FIRST_WAIT = 500;
const LONGEST_WAIT = 8000;

/** The newest ticks, oldest first: rates are differences between them. */
export const recentTicks = signal<Tick[]>([]);

/** Follow the chosen model until the returned function is called. */
export function follow(): () => void {
  let abort = new AbortController();
  const stop = effect(() => {
    const name = model.value;
    abort.abort();
    abort = new AbortController();
    void keepReading(name, abort.signal);
  });
  return () => {
    stop();
    abort.abort();
  };
}

async function keepReading(name: string, signal: AbortSignal): Promise<void> {
  let wait = FIRST_WAIT;
  while (!signal.aborted) {
    try {
      connection.value = "connecting";
      await read(name, signal, () => {
        wait = FIRST_WAIT;
      });
      lostWhy.value = "The server closed the connection.";
    } catch (error) {
      if (signal.aborted) return;
      lostWhy.value = error instanceof ApiError ? error.message : "The connection broke.";
    }
    connection.value = "lost";
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(2 * wait, LONGEST_WAIT);
  }
}

async function read(name: string, signal: AbortSignal, connected: () => void): Promise<void> {
  const query = name ? `?model=${encodeURIComponent(name)}` : "";
  const response = await request(`/ringkv/live${query}`, { signal });
  for await (const { event, data } of events(response)) {
    if (signal.aborted) return;
    if (event === "hello") {
      hello.value = JSON.parse(data) as Hello;
      recentTicks.value = [];
      connection.value = "live";
      connected();
    }
    if (event === "tick") take(JSON.parse(data) as Tick);
  }
}

function take(now: Tick): void {
  recentTicks.value = [...recentTicks.value.slice(1 - KEPT_TICKS), now];
  tick.value = now;
}
