/** What a narrow window shows: the list of conversations, and one of the two halves. */

import { signal } from "@preact/signals";

export const listShown = signal(false);
export const half = signal<"chat" | "memory">("chat");
