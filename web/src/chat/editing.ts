/** The message that is being written, and the one that it replaces. */

import { signal } from "@preact/signals";
import { type Conversation, type Message, setMessages } from "./conversations";
import { attached } from "./documents";

export const draft = signal("");
/** Id of the question that is being edited; "" for a new one. */
export const editing = signal("");

export function beginEdit(_: Conversation, message: Message): void {
  draft.value = message.text;
  attached.value = message.docs ?? [];
  editing.value = message.id;
  document.getElementById("composer")?.focus();
}

export function cancelEdit(): void {
  draft.value = "";
  attached.value = [];
  editing.value = "";
}

/** Return the conversation without the edited question and what came after it. */
export function beforeEdit(conversation: Conversation): Conversation {
  const at = conversation.messages.findIndex((one) => one.id === editing.value);
  if (at < 0) return conversation;
  const messages = conversation.messages.slice(0, at);
  setMessages(conversation.id, messages, false);
  return { ...conversation, messages };
}
