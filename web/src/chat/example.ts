/** A document to try the page with, and a question about a fact in it. */

import { hello } from "../api/live";
import { type Conversation, current, type Doc, update } from "./conversations";
import { attach, attached, detach, refused } from "./documents";
import { draft, focusComposer } from "./editing";
import log from "./example.txt?raw";
import type { Settings } from "./settings";

const BUDGET = "512";
const TEMPERATURE = "0";
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

/** Settings of conversations before the example changed them. */
const before = new Map<string, Pick<Settings, "budget" | "temperature">>();

/** Attach the document, and write a question under a small budget: the reader only has to press Enter. */
export async function attachExample(): Promise<void> {
  if (attached.value.some(isExample)) return;
  const { prompt_tokens = Infinity, context = Infinity, capacity = 0 } = hello.value?.limits ?? {};
  const { id, settings } = current.value;
  before.set(id, settings);
  const own = { temperature: TEMPERATURE, ...(capacity > Number(BUDGET) && { budget: BUDGET }) };
  update(id, (old) => ({ ...old, settings: { ...old.settings, ...own } }));
  draft.value = QUESTION;
  focusComposer();
  await attach(NAME, exampleText(Math.min(prompt_tokens, context) - ROOM));
  if (refused.value) giveBack(id);
}

export function isExample(doc: Doc): boolean {
  return doc.name === NAME;
}

/** Detach a document, and the example's settings with the example. */
export function detachFrom(id: string, doc: Doc): void {
  detach(doc.id);
  if (isExample(doc)) giveBack(id);
}

/** Set what the example has set to what it was before, unless it was changed since. */
function giveBack(id: string): void {
  const old = before.get(id);
  if (!old) return;
  update(id, (now) => {
    const budget = now.settings.budget === BUDGET ? old.budget : now.settings.budget;
    const temperature = now.settings.temperature === TEMPERATURE ? old.temperature : now.settings.temperature;
    return { ...now, settings: { ...now.settings, budget, temperature } };
  });
}

/** Return where a conversation's budget comes from, if that is the example; else "". */
export function budgetNote({ settings, messages }: Conversation): string {
  const docs = [...attached.value, ...messages.flatMap((one) => one.docs ?? [])];
  const isOwn = settings.budget === BUDGET && docs.some(isExample);
  return isOwn ? `The example uses a budget of ${BUDGET} tokens.` : "";
}

/** Return why the model may not find the example's fact; "" if it should, or if the example is not among these. */
export function cautionOf(docs: readonly Doc[]): string {
  return docs.some(isExample) ? (hello.value?.caution ?? "") : "";
}
