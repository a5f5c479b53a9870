/** Sending a conversation and taking its answer. Several conversations may run at a time. */

import { signal } from "@preact/signals";
import { type ChatPart, streamChat } from "../api/chat";
import { ApiError } from "../api/client";
import { model } from "../api/live";
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
import { requestFields } from "./settings";

/** Running answers by conversation. */
export const running = signal<Map<string, AbortController>>(new Map());

/** Why the server refused a conversation's last request, which left no trace in it. */
export const refusals = signal<ReadonlyMap<string, string>>(new Map());

/** Send a question after the messages `before` it. If the server refuses it, it is written again. */
export function send(conversation: Conversation, before: readonly Message[], text: string, docs: Doc[]): void {
  const asked: Message = { id: newId(), role: "user", text, ...(docs.length > 0 && { docs }) };
  void answer(conversation, [...before, asked], () => {
    if (conversation.id !== currentId.peek() || draft.peek()) return;
    draft.value = text;
    attached.value = docs;
  });
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
  const written = new Draft(id, asked);
  const undoTrace = beginTrace(id, messages);
  setRunning(id, abort);
  setRefusal(id, "");
  announce("Waiting for the answer.");
  try {
    const body = {
      ...(model.value && { model: model.value }),
      messages,
      stream: true,
      stream_options: { include_usage: true },
      kv_trace: true,
      ...requestFields(settings),
    };
    for await (const part of streamChat(body, abort.signal)) {
      if (part.kind === "id") traceId(id, part.id);
      written.take(part);
    }
    written.end();
  } catch (error) {
    if (isRefused(error)) {
      undoTrace();
      if (isThere(id)) setMessages(id, conversation.messages);
      setRefusal(id, `The server refused. ${wordsOf(error)}`);
      announce(`The server refused: ${wordsOf(error)}`);
      giveBack();
    } else {
      written.fail(error, abort.signal.aborted);
    }
  } finally {
    setRunning(id, null);
    endTrace(id);
    persist();
  }
}

/** Whether the server refused a request for what it is, before its answer began. */
function isRefused(error: unknown): boolean {
  return error instanceof ApiError && error.status >= 400 && error.status < 500;
}

/** Whether a conversation has not been deleted meanwhile. */
function isThere(id: string): boolean {
  return conversations.value.some((one) => one.id === id);
}

function setRefusal(id: string, said: string): void {
  const next = new Map(refusals.value);
  if (said) next.set(id, said);
  else next.delete(id);
  refusals.value = next;
}

/** Return an error in the page's words. */
function wordsOf(error: unknown): string {
  const said = (error instanceof Error ? error.message : String(error)).replaceAll("kv_budget", "budget");
  return error instanceof ApiError && error.status ? `${said} (status ${error.status})` : said;
}

function setRunning(id: string, abort: AbortController | null): void {
  const next = new Map(running.value);
  if (abort) next.set(id, abort);
  else next.delete(id);
  running.value = next;
}

/** The answer that is being written; shown at most once a frame. */
class Draft {
  private message: Message = { id: newId(), role: "assistant", text: "" };
  private readonly begin = performance.now();
  private first = 0;
  private frame = 0;
  private parts = 0;

  constructor(
    private readonly conversation: string,
    asked: Message[],
  ) {
    setMessages(conversation, [...asked, this.message]);
  }

  take(part: ChatPart): void {
    if (part.kind === "text" || part.kind === "reasoning") this.started();
    this.message = withPart(this.message, part);
    this.frame ||= requestAnimationFrame(() => this.show());
  }

  end(): void {
    this.time();
    this.show();
    announce(`The answer is complete: ${many(this.message.usage?.completion_tokens ?? 0, "token")}.`);
  }

  fail(error: unknown, stopped: boolean): void {
    this.time();
    const said = wordsOf(error);
    this.message = stopped
      ? { ...this.message, finish: "stopped", sampled: Math.max(this.parts, sampledBy(this.conversation)) }
      : { ...this.message, error: said };
    this.show();
    announce(stopped ? "Stopped." : `The answer failed: ${said}`);
  }

  private started(): void {
    this.parts += 1;
    if (this.first) return;
    this.first = performance.now();
    announce("The answer has begun.");
  }

  private time(): void {
    if (!this.first) return;
    const timing = { first: (this.first - this.begin) / 1000, rest: (performance.now() - this.first) / 1000 };
    this.message = { ...this.message, timing };
  }

  private show(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (isThere(this.conversation)) setMessage(this.conversation, this.message, false);
  }
}

/** Return how many tokens the newest tick has of a conversation's answer. */
function sampledBy(conversation: string): number {
  const slot = traces.peek().get(conversation)?.slot;
  return slot ? slot.seen - slot.prompt : 0;
}

function withPart(message: Message, part: ChatPart): Message {
  switch (part.kind) {
    case "text":
      return { ...message, text: message.text + part.text };
    case "reasoning":
      return { ...message, reasoning: (message.reasoning ?? "") + part.text };
    case "finish":
      return { ...message, finish: part.reason };
    case "usage":
      return { ...message, usage: part.usage };
    case "id":
      return message;
  }
}
