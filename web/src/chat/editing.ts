/** The message that is being written, and the one that it replaces. */

import { signal } from "@preact/signals";
import type { Conversation, Message } from "./conversations";
import { attached } from "./documents";

export const draft = signal("");
/** Id of the question that is being edited; "" for a new one. */
export const editing = signal("");

export function beginEdit(_: Conversation, message: Message): void {
  draft.value = message.text;
  attached.value = message.docs ?? [];
  editing.value = message.id;
  focusComposer();
}

export function cancelEdit(): void {
  draft.value = "";
  attached.value = [];
  editing.value = "";
}

/** Return the messages before the edited question; all of them if none is edited. */
export function beforeEdit({ messages }: Conversation): Message[] {
  const at = messages.findIndex((one) => one.id === editing.value);
  return at < 0 ? messages : messages.slice(0, at);
}

export function focusComposer(): void {
  document.getElementById("composer")?.focus();
}
