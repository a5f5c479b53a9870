/** One answer of the model, streamed. */

import { errorFrom, post } from "./client";
import { events } from "./sse";
import type { Usage } from "./types";

export type ChatPart =
  | { kind: "id"; id: string }
  | { kind: "text"; text: string }
  | { kind: "reasoning"; text: string }
  | { kind: "finish"; reason: string }
  | { kind: "usage"; usage: Usage };

interface Chunk {
  id?: string;
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null }; finish_reason?: string | null }[];
  usage?: Usage | null;
  error?: unknown;
}

/** Yield an answer's parts. Raises ApiError, also for an error inside the stream. */
export async function* streamChat(body: unknown, signal: AbortSignal): AsyncGenerator<ChatPart> {
  const response = await post("/v1/chat/completions", body, signal);
  let id = "";
  for await (const { data } of events(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error) throw errorFrom(chunk, 500);
    if (chunk.id && chunk.id !== id) {
      id = chunk.id;
      yield { kind: "id", id };
    }
    yield* parts(chunk);
  }
}

function* parts(chunk: Chunk): Generator<ChatPart> {
  const choice = chunk.choices?.[0];
  if (choice?.delta?.reasoning_content) yield { kind: "reasoning", text: choice.delta.reasoning_content };
  if (choice?.delta?.content) yield { kind: "text", text: choice.delta.content };
  if (choice?.finish_reason) yield { kind: "finish", reason: choice.finish_reason };
  if (chunk.usage) yield { kind: "usage", usage: chunk.usage };
}
