/** Conversations, kept in this browser's localStorage and nowhere else. */

import { computed, signal } from "@preact/signals";
import type { Usage, WireMessage } from "../api/types";
import { DEFAULTS, type Settings } from "./settings";

/** A long text that goes before the question. tokens: null until counted. */
export interface Doc {
  id: string;
  name: string;
  text: string;
  tokens: number | null;
}

export interface Message {
  id: string;
  role: "user" | "assistant";
  text: string;
  docs?: Doc[];
  reasoning?: string;
  /** An error in words, if the answer failed. */
  error?: string;
  finish?: string;
  usage?: Usage;
  /** Seconds to the first token, and from there to the last. */
  timing?: { first: number; rest: number };
  /** Tokens of a stopped answer as far as the page has seen them: its usage is not sent. */
  sampled?: number;
}

export interface Conversation {
  id: string;
  title: string;
  /** Whether a person gave the title. */
  named: boolean;
  updated: number;
  settings: Settings;
  messages: Message[];
}

const STORE = "ringkv.conversations";
const CURRENT = "ringkv.current";
const TITLE_LENGTH = 44;

export const conversations = signal<Conversation[]>(load());
export const currentId = signal<string>(first());
/** Set if the browser refused to keep a conversation. */
export const storageFault = signal("");

export const current = computed<Conversation>(
  () => conversations.value.find((one) => one.id === currentId.value) ?? blank(currentId.value),
);

/** Conversations with messages, newest first. */
export const listed = computed(() =>
  conversations.value.filter((one) => one.messages.length > 0).sort((a, b) => b.updated - a.updated),
);

export function newId(): string {
  // crypto.randomUUID exists on secure origins only; a page over plain HTTP in a local network is not one.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function startNew(): void {
  const fresh = blank(newId());
  conversations.value = [...conversations.value.filter((one) => one.messages.length > 0), fresh];
  open(fresh.id);
}

export function open(id: string): void {
  currentId.value = id;
  keep(CURRENT, id);
}

/** Replace a conversation by what `change` makes of it. */
export function update(id: string, change: (conversation: Conversation) => Conversation, save = true): void {
  const all = conversations.value;
  const old = all.find((one) => one.id === id) ?? blank(id);
  const changed = change(old);
  conversations.value = all.includes(old) ? all.map((one) => (one === old ? changed : one)) : [...all, changed];
  if (save) persist();
}

export function rename(id: string, title: string): void {
  update(id, (old) => ({ ...old, title, named: true }));
}

export function remove(id: string): void {
  conversations.value = conversations.value.filter((one) => one.id !== id);
  persist();
  if (currentId.value === id) open(listed.value[0]?.id ?? newId());
}

export function setMessages(id: string, messages: Message[], save = true): void {
  update(
    id,
    (old) => ({ ...old, messages, title: old.named ? old.title : titleOf(messages), updated: Date.now() }),
    save,
  );
}

export function setMessage(id: string, message: Message, save = true): void {
  update(id, (old) => ({ ...old, messages: old.messages.map((one) => (one.id === message.id ? message : one)) }), save);
}

export function persist(): void {
  const fault = "This browser's storage is full, so the conversation is not kept. Delete one, or export it first.";
  const isKept = keep(STORE, JSON.stringify(conversations.value.filter((one) => one.messages.length > 0)));
  storageFault.value = isKept ? "" : fault;
}

/** Return the content of a message as the model gets it: documents first, because the last tokens select. */
export function contentOf(message: Pick<Message, "text" | "docs">): string {
  const docs = (message.docs ?? []).map((doc) => `${doc.name}:\n\n${doc.text.trim()}`);
  return [...docs, message.text].filter(Boolean).join("\n\n");
}

/** Return the messages of a request for the next answer. */
export function wireMessages(settings: Settings, messages: readonly Message[]): WireMessage[] {
  const system: WireMessage[] = settings.system.trim() ? [{ role: "system", content: settings.system.trim() }] : [];
  const sent = messages.filter((one) => one.role === "user" || one.text);
  return [...system, ...sent.map(({ role, ...rest }): WireMessage => ({ role, content: contentOf(rest) }))];
}

export function exported(conversation: Conversation): string {
  const { title, settings, messages } = conversation;
  return JSON.stringify({ title, settings, messages: wireMessages(settings, messages), details: messages }, null, 2);
}

export function titleOf(messages: readonly Message[]): string {
  const [asked] = messages;
  const text = (asked?.text || asked?.docs?.[0]?.name || "New chat").replace(/\s+/g, " ").trim();
  return text.length > TITLE_LENGTH ? `${text.slice(0, TITLE_LENGTH - 1).trimEnd()}…` : text;
}

function blank(id: string): Conversation {
  return { id, title: "New chat", named: false, updated: Date.now(), settings: { ...DEFAULTS }, messages: [] };
}

function first(): string {
  return localStorage.getItem(CURRENT) ?? conversations.peek()[0]?.id ?? newId();
}

function load(): Conversation[] {
  try {
    const found = JSON.parse(localStorage.getItem(STORE) ?? "[]") as Conversation[];
    return found.map((one) => ({ ...one, settings: { ...DEFAULTS, ...one.settings } }));
  } catch {
    return []; // of another version, or edited by hand
  }
}

function keep(name: string, value: string): boolean {
  try {
    localStorage.setItem(name, value);
    return true;
  } catch {
    return false; // the quota
  }
}
