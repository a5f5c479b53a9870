/** What a screen reader says: a few sentences, not every token. */

import { signal } from "@preact/signals";

export const announced = signal("");

export function announce(sentence: string): void {
  announced.value = sentence;
}
