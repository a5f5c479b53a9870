/** What the server sends, as docs/serving.md describes it. */

export interface Limits {
  slots: number;
  capacity: number;
  /** Tokens that the policy full holds: more than a slot if an answer may extend the staged prompt. */
  longest_full: number;
  prompt_tokens: number;
  context: number;
  slot_bytes: number;
  entry_bytes: number;
  staging_bytes: number;
  store_bytes: number;
  held_bytes: number;
  kv_format: string;
  page: number;
}

export interface Hello {
  model: string;
  models: string[];
  version: string;
  limits: Limits;
  default_kv: { policy: string; budget: number | null };
  policies: string[];
  layers: number;
  heads: number;
  /** A sentence about a model that rarely finds a fact even with the full cache; "" of others. */
  caution: string;
}

/** Integers of a slot's Layout (docs/policies.md). */
export interface SlotLayout {
  sinks: number;
  selected: number;
  protected: number;
  base: number;
  ring: number;
  /** Entries that are filled again and again once the slot is full: the ring, or as many as a review evicts. */
  again: number;
}

/** A slot in use, and how many tokens it has seen. */
export interface SlotState extends SlotLayout {
  slot: number;
  id: string;
  policy: string;
  prompt: number;
  seen: number;
  capacity: number;
  bytes: number;
}

export interface PromptState {
  id: string;
  tokens: number;
  prefilled: number;
}

export interface Tick {
  t: number;
  waiting: number;
  prefilling: number;
  running: number;
  free_slots: number;
  alive: boolean;
  steps: number;
  tokens: number;
  prompt_tokens: number;
  prompts: PromptState[];
  slots: SlotState[];
}

/** counts[p]: how many of `of` (layer, head) pairs kept prompt token p. */
export interface Kept {
  id: string;
  tokens: number;
  layers: number;
  heads: number;
  of: number;
  counts: number[];
  policy: string;
  budget: number;
  layout: SlotLayout;
}

export interface Percentiles {
  p50: number | null;
  p95: number | null;
  p99?: number | null;
}

export interface Point {
  t: number;
  prompt_tokens: number;
  output_tokens: number;
  requests: number;
  /** Refused because of what they are: status 4xx. */
  invalid: number;
  errors: number;
  /** Refused because of load. */
  rejected: number;
  evicted: number;
  cancelled: number;
  running: number;
  waiting: number;
  free_slots: number;
  ttft: Percentiles;
  tpot: Percentiles;
  step: Percentiles;
}

export interface History {
  interval: number;
  now: number;
  points: Point[];
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens: number };
  kv?: {
    policy: string;
    capacity: number;
    kept: number;
    evicted: number;
    ring_wraps: number;
    bytes_held: number;
  };
}

export interface WireMessage {
  role: "system" | "user" | "assistant";
  content: string;
}
