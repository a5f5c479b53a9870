/** Tokens of a text or of a conversation, counted by the server. */

import { post } from "./client";
import type { WireMessage } from "./types";

interface Tokenized {
  tokens: number[];
  count: number;
  max_model_len: number;
  token_strs?: string[] | null;
}

export async function countText(model: string, text: string, signal?: AbortSignal): Promise<number> {
  const response = await post("/tokenize", { model, prompt: text, add_special_tokens: false }, signal);
  return ((await response.json()) as Tokenized).count;
}

export async function countMessages(model: string, messages: WireMessage[], signal?: AbortSignal): Promise<number> {
  const response = await post("/tokenize", { model, messages }, signal);
  return ((await response.json()) as Tokenized).count;
}

/** Return each prompt token's text, as the model's chat template renders the messages. */
export async function promptTexts(model: string, messages: WireMessage[], signal?: AbortSignal): Promise<string[]> {
  const response = await post("/tokenize", { model, messages, return_token_strs: true }, signal);
  return ((await response.json()) as Tokenized).token_strs ?? [];
}
