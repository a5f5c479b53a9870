/** Documents: long texts that are pasted or dropped, counted by the server before they are sent. */

import { signal } from "@preact/signals";
import { hello, model } from "../api/live";
import { countMessages, countText } from "../api/tokens";
import type { WireMessage } from "../api/types";
import { count, many } from "../text/format";
import { type Doc, newId } from "./conversations";

/** A pasted text of so many characters becomes a document instead of filling the field. */
const LONG = 1500;
const LARGEST_FILE = 32 << 20;

/** Documents of the message that is being written, and why one was refused. */
export const attached = signal<Doc[]>([]);
export const refused = signal("");

export function isLong(text: string): boolean {
  return text.length >= LONG;
}

export async function attach(name: string, text: string): Promise<void> {
  refused.value = "";
  const doc: Doc = { id: newId(), name, text, tokens: null };
  attached.value = [...attached.value, doc];
  try {
    const tokens = await countText(model.value || (hello.value?.model ?? ""), text);
    attached.value = attached.value.map((one) => (one.id === doc.id ? { ...one, tokens } : one));
  } catch (error) {
    detach(doc.id);
    refused.value = `${name} cannot be attached: ${error instanceof Error ? error.message : error}`;
  }
}

export async function attachFiles(files: Iterable<File>): Promise<void> {
  for (const file of files) {
    if (file.size > LARGEST_FILE) {
      refused.value = `${file.name} has ${count(file.size / 1e6)} MB; the page takes texts of up to 32 MB.`;
      continue;
    }
    const text = await file.text();
    if (text.includes("\0")) refused.value = `${file.name} is not a text.`;
    else await attach(file.name, text);
  }
}

export function detach(id: string): void {
  attached.value = attached.value.filter((one) => one.id !== id);
}

/** What the message that is being written would cost with all before it; null until counted. */
export const total = signal<number | null>(null);

let counting = new AbortController();

/** Forget the count, also one that is under way. */
export function countNothing(): void {
  counting.abort();
  total.value = null;
}

/** Count the prompt, once typing pauses. */
export function countLater(messages: WireMessage[], wait = 400): void {
  counting.abort();
  counting = new AbortController();
  const { signal } = counting;
  setTimeout(() => {
    if (!signal.aborted) void countNow(messages, signal);
  }, wait);
}

async function countNow(messages: WireMessage[], signal: AbortSignal): Promise<void> {
  try {
    total.value =
      messages.length > 0 ? await countMessages(model.value || (hello.value?.model ?? ""), messages, signal) : null;
  } catch {
    if (!signal.aborted) total.value = null; // sending says what is wrong
  }
}

/** Return why a prompt of so many tokens cannot be sent; "" if it can. */
export function overLimit(tokens: number | null): string {
  const limits = hello.value?.limits;
  if (!limits || tokens === null) return "";
  const longest = Math.min(limits.prompt_tokens, limits.context - 1);
  return tokens > longest
    ? `The prompt has ${many(tokens, "token")} and this server takes ${count(longest)}. Shorten it, or start the server with a larger --max-prompt.`
    : "";
}
