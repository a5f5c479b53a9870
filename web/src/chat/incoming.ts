/** An answer as it comes in: a message that grows. */

import type { ChatPart } from "../api/chat";
import { ApiError } from "../api/client";
import { type Message, newId } from "./conversations";

export class Incoming {
  message: Message = { id: newId(), role: "assistant", text: "" };
  private readonly sent = performance.now();
  private first = 0;
  private frame = 0;
  private parts = 0;

  /** show: gets the message at most once a frame, and when it ends. begun: called at the first token. */
  constructor(
    private readonly show: (message: Message) => void,
    private readonly begun: () => void,
  ) {}

  take(part: ChatPart): void {
    if (part.kind === "text" || part.kind === "reasoning") this.count();
    this.message = withPart(this.message, part);
    this.frame ||= requestAnimationFrame(() => this.showNow());
  }

  end(): void {
    this.time();
    this.showNow();
  }

  /** End with what there is. sampled: tokens of it, as far as others have seen them. */
  stop(sampled = 0): void {
    this.message = { ...this.message, finish: "stopped", sampled: Math.max(this.parts, sampled) };
    this.end();
  }

  fail(error: unknown): void {
    this.message = { ...this.message, error: wordsOf(error) };
    this.end();
  }

  private count(): void {
    this.parts += 1;
    if (this.first) return;
    this.first = performance.now();
    this.time();
    this.begun();
  }

  private time(): void {
    if (!this.first) return;
    const timing = { first: (this.first - this.sent) / 1000, rest: (performance.now() - this.first) / 1000 };
    this.message = { ...this.message, timing };
  }

  private showNow(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.show(this.message);
  }
}

/** Return an error in the page's words. */
export function wordsOf(error: unknown): string {
  const said = (error instanceof Error ? error.message : String(error)).replaceAll("kv_budget", "budget");
  return error instanceof ApiError && error.status ? `${said} (status ${error.status})` : said;
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
