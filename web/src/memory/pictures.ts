/** Pictures of finished answers, kept in this browser with their conversations: the server forgets them. */

import { effect } from "@preact/signals";
import { hello } from "../api/live";
import { conversations, currentId, wireMessages } from "../chat/conversations";
import { isOfAll, restoreTrace, type Trace, traces } from "./trace";

type Picture = Pick<Trace, "id" | "samples" | "slot" | "kept">;

const STORE = "ringkv.picture.";

export function forgetPicture(conversation: string): void {
  localStorage.removeItem(STORE + conversation);
}

function keep(conversation: string, { id, samples, slot, kept }: Trace): void {
  try {
    localStorage.setItem(STORE + conversation, JSON.stringify({ id, samples, slot, kept } satisfies Picture));
  } catch {
    forgetPicture(conversation); // the quota: the conversations need it more
  }
}

function kept(conversation: string): Picture | null {
  try {
    return JSON.parse(localStorage.getItem(STORE + conversation) ?? "null") as Picture | null;
  } catch {
    return null; // of another version, or edited by hand
  }
}

const known = new Map<string, Trace>();

// A picture is kept once its answer is complete, and again if more of it arrives later.
effect(() => {
  for (const [conversation, trace] of traces.value) {
    if (trace.running || known.get(conversation) === trace || !trace.kept || !isOfAll(trace)) continue;
    known.set(conversation, trace);
    keep(conversation, trace);
  }
});

// A conversation that is opened again has its picture again.
effect(() => {
  const id = currentId.value;
  if (!hello.value || traces.peek().has(id)) return;
  const conversation = conversations.peek().find((one) => one.id === id);
  const isOfLast = conversation && !conversation.messages.at(-1)?.error;
  const picture = isOfLast && kept(id);
  if (!picture) return;
  const asked = conversation.messages.findLastIndex((one) => one.role === "user");
  restoreTrace(id, {
    ...picture,
    messages: wireMessages(conversation.settings, conversation.messages.slice(0, asked + 1)),
  });
});
