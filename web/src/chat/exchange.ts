/** Sending a conversation and taking its answer. Several conversations may run at a time. */

import { signal } from "@preact/signals";
import { streamChat } from "../api/chat";
import { ApiError } from "../api/client";
import { model } from "../api/live";
import type { WireMessage } from "../api/types";
import { beginTrace, endTrace, traceId, traces } from "../memory/trace";
import { many } from "../text/format";
import { announce } from "../ui/announce";
import {
  type Conversation,
  conversations,
  currentId,
  type Doc,
  type Message,
  newId,
  persist,
  setMessage,
  setMessages,
  wireMessages,
} from "./conversations";
import { attached } from "./documents";
import { draft } from "./editing";
import { Incoming, wordsOf } from "./incoming";
import { requestFields, type Settings } from "./settings";

/** Running answers by conversation. */
export const running = signal<Map<string, AbortController>>(new Map());

/** Why the server refused a conversation's last request, which left no trace in it. */
export const refusals = signal<ReadonlyMap<string, string>>(new Map());

/** Send a question after the messages `before` it. If the server refuses it, it is written again. */
export function send(conversation: Conversation, before: readonly Message[], text: string, docs: Doc[]): void {
  void answer(conversation, [...before, question(text, docs)], () => {
    if (conversation.id !== currentId.peek() || draft.peek()) return;
    draft.value = text;
    attached.value = docs;
  });
}

export function question(text: string, docs: Doc[]): Message {
  return { id: newId(), role: "user", text, ...(docs.length > 0 && { docs }) };
}

/** Answer the last question again, without what came after it. */
export function retry(conversation: Conversation): void {
  const last = conversation.messages.findLastIndex((one) => one.role === "user");
  if (last >= 0) void answer(conversation, conversation.messages.slice(0, last + 1));
}

export function stop(id: string): void {
  running.value.get(id)?.abort();
}

async function answer(conversation: Conversation, asked: Message[], giveBack = () => {}): Promise<void> {
  const { id, settings } = conversation;
  if (running.value.has(id)) return;
  const abort = new AbortController();
  const messages = wireMessages(settings, asked);
  const written = new Incoming(
    (message) => isThere(id) && setMessage(id, message, false),
    () => announce("The answer has begun."),
  );
  setMessages(id, [...asked, written.message]);
  const undoTrace = beginTrace(id, messages);
  setRunning(id, abort);
  setRefusal(id, "");
  announce("Waiting for the answer.");
  try {
    const body = { kv_trace: true, ...chatBody(settings, messages) };
    for await (const part of streamChat(body, abort.signal)) {
      if (part.kind === "id") traceId(id, part.id);
      written.take(part);
    }
    written.end();
    announce(`The answer is complete: ${many(written.message.usage?.completion_tokens ?? 0, "token")}.`);
  } catch (error) {
    if (isRefused(error)) {
      undoTrace();
      if (isThere(id)) setMessages(id, conversation.messages);
      setRefusal(id, `The server refused. ${wordsOf(error)}`);
      announce(`The server refused: ${wordsOf(error)}`);
      giveBack();
    } else if (abort.signal.aborted) {
      written.stop(sampledBy(id));
      announce("Stopped.");
    } else {
      written.fail(error);
      announce(`The answer failed: ${wordsOf(error)}`);
    }
  } finally {
    setRunning(id, null);
    endTrace(id);
    persist();
  }
}

/** Return the body of a request for an answer, as a stream. */
export function chatBody(settings: Settings, messages: WireMessage[]): Record<string, unknown> {
  return {
    ...(model.value && { model: model.value }),
    messages,
    stream: true,
    stream_options: { include_usage: true },
    ...requestFields(settings),
  };
}

/** Whether the server refused a request for what it is, before its answer began. */
function isRefused(error: unknown): boolean {
  return error instanceof ApiError && error.status >= 400 && error.status < 500;
}

/** Whether a conversation has not been deleted meanwhile. */
function isThere(id: string): boolean {
  return conversations.value.some((one) => one.id === id);
}

export function setRefusal(id: string, said: string): void {
  const next = new Map(refusals.value);
  if (said) next.set(id, said);
  else next.delete(id);
  refusals.value = next;
}

export function setRunning(id: string, abort: AbortController | null): void {
  const next = new Map(running.value);
  if (abort) next.set(id, abort);
  else next.delete(id);
  running.value = next;
}

/** Return how many tokens the newest tick has of a conversation's answer. */
function sampledBy(conversation: string): number {
  const slot = traces.peek().get(conversation)?.slot;
  return slot ? slot.seen - slot.prompt : 0;
}
