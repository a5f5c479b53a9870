/** What the page knows of its own requests: how much memory they held, and what they kept of their prompts. */

import { effect, signal } from "@preact/signals";
import { ApiError, getJson } from "../api/client";
import { hello, model, recentTicks, tick } from "../api/live";
import { promptTexts } from "../api/tokens";
import type { Kept, Tick, WireMessage } from "../api/types";
import type { Shape } from "../cache/ring";

/** Bytes that a request held, and that a full cache would hold, after so many tokens. */
export interface Sample {
  seen: number;
  held: number;
  full: number;
}

/** Which layer and head the picture of a prompt counts; null: all. */
export interface Pick {
  layer: number | null;
  head: number | null;
}

/** What is shown of a request's slot. */
export type Held = Shape & { bytes: number };

export interface Trace {
  /** The request's id; "" until its answer begins. */
  id: string;
  messages: WireMessage[];
  samples: Sample[];
  /** The newest state of its slot, which stays after the answer. */
  slot: Held | null;
  running: boolean;
  texts: string[];
  kept: Kept | null;
  pick: Pick;
  /** What `kept` counts: the pick that was answered last. */
  counted: Pick;
  /** Why the kept tokens are not shown, in words. */
  fault: string;
}

/** The last request of each conversation. */
export const traces = signal<ReadonlyMap<string, Trace>>(new Map());

const ALL: Pick = { layer: null, head: null };
const EMPTY = { id: "", samples: [], slot: null, texts: [], kept: null, pick: ALL, counted: ALL, fault: "" };

/** Begin the trace of a request. Returns a function that puts the conversation's earlier trace back. */
export function beginTrace(conversation: string, messages: WireMessage[]): () => void {
  const earlier = traces.peek().get(conversation);
  set(conversation, { ...EMPTY, messages, running: true });
  return () => {
    const all = new Map(traces.peek());
    if (earlier) all.set(conversation, earlier);
    else all.delete(conversation);
    traces.value = all;
  };
}

/** Show the picture of an earlier answer again. */
export function restoreTrace(
  conversation: string,
  found: Partial<Trace> & { id: string; messages: WireMessage[] },
): void {
  set(conversation, { ...EMPTY, running: false, ...found });
  void loadTexts(conversation, found.id);
}

/** Whether the picture of a prompt counts all layers and heads. */
export function isOfAll({ counted }: Trace): boolean {
  return counted.layer === null && counted.head === null;
}

export function traceId(conversation: string, id: string): void {
  change(conversation, (old) => ({ ...old, id }));
  // Its slot may have been in ticks already, and a short answer may be in no later one.
  for (const now of recentTicks.peek()) follow(now);
  void Promise.all([loadTexts(conversation, id), loadKept(conversation)]);
}

export function endTrace(conversation: string): void {
  change(conversation, (old) => ({ ...old, running: false }));
}

/** Count another layer or head in the picture of a prompt. */
export function pick(conversation: string, chosen: Partial<Pick>): void {
  change(conversation, (old) => ({ ...old, pick: { ...old.pick, ...chosen } }));
  void loadKept(conversation);
}

async function loadKept(conversation: string): Promise<void> {
  const trace = traces.value.get(conversation);
  if (!trace?.id) return;
  const { id, pick } = trace;
  const { layer, head } = pick;
  const query = new URLSearchParams();
  if (model.value) query.set("model", model.value);
  if (layer !== null) query.set("layer", String(layer));
  if (head !== null) query.set("head", String(head));
  try {
    const kept = await getJson<Kept>(`/ringkv/kept/${encodeURIComponent(id)}?${query}`);
    // Answers may come in another order than they were asked for.
    changeRequest(conversation, id, (old) =>
      old.pick === pick ? withSlot({ ...old, kept, counted: pick, fault: "" }, afterPrefill(kept)) : old,
    );
  } catch (error) {
    changeRequest(conversation, id, (old) => unpicked(old, error));
  }
}

const FORGOTTEN = "Single layers and heads can be picked in the server's last 8 requests only.";

/** Return a trace whose kept tokens could not be counted again: those that were counted last stay. */
function unpicked(old: Trace, error: unknown): Trace {
  const isForgotten = old.kept !== null && error instanceof ApiError && error.status === 404;
  return { ...old, pick: old.counted, fault: isForgotten ? FORGOTTEN : words(error) };
}

/** Return a slot as prefill left it: a short answer may be in no tick. */
function afterPrefill({ policy, tokens, budget, layout }: Kept): Held {
  const bytes = hello.peek()?.limits.slot_bytes ?? 0;
  return { policy, prompt: tokens, seen: tokens, capacity: budget, bytes, ...layout };
}

async function loadTexts(conversation: string, id: string): Promise<void> {
  const trace = traces.value.get(conversation);
  if (!trace) return;
  try {
    const texts = await promptTexts(model.value || (hello.value?.model ?? ""), trace.messages);
    changeRequest(conversation, id, (old) => ({ ...old, texts }));
  } catch (error) {
    changeRequest(conversation, id, (old) => ({ ...old, fault: words(error) }));
  }
}

function words(error: unknown): string {
  return error instanceof ApiError ? error.message : String(error);
}

/** Add what a tick says of the page's own requests. */
export function follow(now: Tick): void {
  for (const [conversation, trace] of traces.peek()) {
    const slot = trace.id && now.slots.find((one) => one.id === trace.id);
    if (slot) change(conversation, (old) => withSlot(old, slot));
  }
}

function withSlot(old: Trace, slot: Held): Trace {
  if (old.slot && old.slot.seen >= slot.seen) return old;
  const each = hello.peek()?.limits.entry_bytes ?? 0;
  const sample = (seen: number) => ({ seen, held: slot.bytes, full: seen * each });
  // The slot has its size from the start, whatever prefill has done.
  const before = old.samples.length > 0 ? old.samples : [sample(0), sample(slot.prompt)];
  return { ...old, slot, samples: [...before, sample(slot.seen)] };
}

effect(() => {
  const now = tick.value;
  if (now) follow(now);
});

function set(conversation: string, trace: Trace): void {
  traces.value = new Map(traces.peek()).set(conversation, trace);
}

function change(conversation: string, made: (old: Trace) => Trace): void {
  const old = traces.peek().get(conversation);
  if (!old) return;
  const next = made(old);
  if (next !== old) set(conversation, next);
}

/** Change a trace unless another request has taken its place. */
function changeRequest(conversation: string, id: string, made: (old: Trace) => Trace): void {
  change(conversation, (old) => (old.id === id ? made(old) : old));
}
