/** A document to try the page with, and a question about a fact in it. */

import { hello } from "../api/live";
import { current, update } from "./conversations";
import { attach } from "./documents";
import { draft, focusComposer } from "./editing";
import log from "./example.txt?raw";

const BUDGET = 512;
const NAME = "Keeper’s log";
const QUESTION = "Where did the keeper hide the spare key?";
/** Of a token, about: fewer than it has, so that a shortened log fits. */
const CHARACTERS = 3;
/** Where in the log the fact is. */
const PLACE = 0.54;
/** Tokens for the chat template, the question and the answer. */
const ROOM = 600;

/** Return the log, or of a server with short prompts as many of its entries around the fact as it takes. */
export function exampleText(tokens: number): string {
  const entries = log.trim().split("\n\n");
  const fitting = Math.floor(Math.min(1, (CHARACTERS * tokens) / log.length) * entries.length);
  const first = Math.floor(PLACE * (entries.length - fitting));
  return entries.slice(first, first + fitting).join("\n\n");
}

/** Attach the document, and write a question under a small budget: the reader only has to press Enter. */
export async function attachExample(): Promise<void> {
  const { prompt_tokens = Infinity, context = Infinity, capacity = 0 } = hello.value?.limits ?? {};
  update(current.value.id, (old) => ({
    ...old,
    settings: { ...old.settings, temperature: "0", ...(capacity > BUDGET && { budget: String(BUDGET) }) },
  }));
  draft.value = QUESTION;
  focusComposer();
  await attach(NAME, exampleText(Math.min(prompt_tokens, context) - ROOM));
}
