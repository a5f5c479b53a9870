/** One question under several budgets. Its answers are beside the conversation until one of them is kept. */

import { effect, signal } from "@preact/signals";
import { streamChat } from "../api/chat";
import { hello, model } from "../api/live";
import { countMessages } from "../api/tokens";
import { inTurn } from "../api/turns";
import { many } from "../text/format";
import { announce } from "../ui/announce";
import { budgets } from "./budgets";
import {
  type Conversation,
  currentId,
  type Doc,
  listed,
  type Message,
  setMessages,
  wireMessages,
} from "./conversations";
import { cancelEdit, draft } from "./editing";
import { chatBody, question, running, setRefusal, setRunning, stop } from "./exchange";
import { Incoming, wordsOf } from "./incoming";
import type { Settings } from "./settings";

/** Longest answer, unless the conversation's settings have one: a small model's greedy answer may not end. */
const LONGEST = "256";

export interface Column {
  budget: number;
  /** null before its request is sent. */
  answer: Message | null;
  ended: boolean;
}

export interface Comparison {
  before: readonly Message[];
  asked: Message;
  /** Of the prompt. */
  tokens: number;
  policy: string;
  columns: readonly Column[];
  /** The conversation's last message. The comparison is shown until there is another. */
  after: string | undefined;
}

const comparisons = signal<ReadonlyMap<string, Comparison>>(new Map());

export function comparisonOf({ id, messages }: Conversation): Comparison | null {
  const made = comparisons.value.get(id);
  return made && made.after === messages.at(-1)?.id ? made : null;
}

export function isComparing(conversation: Conversation): boolean {
  return comparisonOf(conversation)?.columns.some((column) => !column.ended) ?? false;
}

export function closeComparison(id: string): void {
  if (
    comparisons
      .peek()
      .get(id)
      ?.columns.some((column) => !column.ended)
  )
    stop(id);
  put(id, null);
}

/** Ask a question after the messages `before` it under each budget, greedily. */
export async function compare(
  conversation: Conversation,
  before: readonly Message[],
  text: string,
  docs: Doc[],
): Promise<void> {
  const { id, settings } = conversation;
  const known = hello.peek();
  if (!known || running.peek().has(id)) return;
  const abort = new AbortController();
  const asked = question(text, docs);
  const messages = wireMessages(settings, [...before, asked]);
  setRunning(id, abort);
  setRefusal(id, "");
  try {
    const tokens = await countMessages(model.value || known.model, messages, abort.signal);
    const compared = budgets(tokens, known.limits.capacity, known.limits.longest_full);
    const greedy = greedySettings(settings, known.default_kv.policy);
    const columns = compared.map((budget) => ({ budget, answer: null, ended: false }));
    put(id, { before, asked, tokens, policy: greedy.policy, columns, after: conversation.messages.at(-1)?.id });
    announce(`Comparing ${many(compared.length, "budget")}.`);
    const tasks = compared.map((budget) => {
      const cache = budget > known.limits.capacity ? { policy: "full", budget: "" } : { budget: String(budget) };
      const body = chatBody({ ...greedy, ...cache }, messages);
      return (begun: () => void) => fill(id, budget, body, abort.signal, begun);
    });
    await inTurn(tasks, known.limits.slots);
    announce(abort.signal.aborted ? "Stopped." : "The comparison is complete.");
  } catch (error) {
    if (!abort.signal.aborted) setRefusal(id, `The comparison failed. ${wordsOf(error)}`);
  } finally {
    setRunning(id, null);
  }
}

/** Make an answer of a comparison the conversation's. */
export function keep(id: string, { before, asked }: Comparison, answer: Message): void {
  setMessages(id, [...before, asked, answer]);
  closeComparison(id);
  if (draft.peek().trim() === asked.text) cancelEdit(); // else another question is being written
}

/** The full cache has no smaller budgets, so they are compared under the default policy. */
function greedySettings(settings: Settings, standard: string): Settings {
  const policy = settings.policy || standard;
  return {
    ...settings,
    policy: policy === "full" ? "snapstream" : policy,
    temperature: "0",
    maxTokens: settings.maxTokens.trim() || LONGEST,
  };
}

async function fill(
  id: string,
  budget: number,
  body: Record<string, unknown>,
  signal: AbortSignal,
  begun: () => void,
): Promise<void> {
  const written = new Incoming((answer) => change(id, budget, { answer }), begun);
  change(id, budget, { answer: written.message });
  try {
    for await (const part of streamChat(body, signal)) written.take(part);
    written.end();
  } catch (error) {
    if (signal.aborted) written.stop();
    else written.fail(error);
  }
  change(id, budget, { ended: true });
}

function change(id: string, budget: number, to: Partial<Column>): void {
  const made = comparisons.peek().get(id);
  if (!made) return;
  put(id, { ...made, columns: made.columns.map((one) => (one.budget === budget ? { ...one, ...to } : one)) });
}

function put(id: string, comparison: Comparison | null): void {
  const next = new Map(comparisons.peek());
  if (comparison) next.set(id, comparison);
  else next.delete(id);
  comparisons.value = next;
}

// A new chat that is left without a message cannot be opened again.
effect(() => {
  const shown = new Set(listed.value.map((one) => one.id)).add(currentId.value);
  for (const id of comparisons.peek().keys()) if (!shown.has(id)) closeComparison(id);
});
