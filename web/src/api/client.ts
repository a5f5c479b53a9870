/** Requests to the server: with the API key if there is one, and errors in words. */

import { signal } from "@preact/signals";

const KEY = "ringkv.key";

/** Set while the page asks for an API key; resolves waiting requests. */
export const keyAsked = signal<{ wrong: boolean } | null>(null);

let answer: Promise<boolean> | null = null;
let give: (given: boolean) => void = () => undefined;

/** An error that a person can read. status: 0 if the server was not reached. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly field = "",
  ) {
    super(message);
  }
}

export function giveKey(key: string | null): void {
  if (key) sessionStorage.setItem(KEY, key);
  keyAsked.value = null;
  answer = null;
  give(Boolean(key));
}

/** Whether requests are sent with a key, which links cannot send. */
export function hasKey(): boolean {
  return sessionStorage.getItem(KEY) !== null;
}

/** Send a request; ask for a key and repeat it if the server wants one. Raises ApiError. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const response = await reach(path, init, key);
    if (response.ok) return response;
    const changed = sessionStorage.getItem(KEY) !== key;
    if (response.status !== 401 || !(changed || (await askKey(Boolean(key))))) throw await errorOf(response);
  }
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await request(path, signal ? { signal } : {})).json();
}

export function post(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const headers = { "content-type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(body), ...(signal && { signal }) });
}

async function reach(path: string, init: RequestInit, key: string | null): Promise<Response> {
  const headers = new Headers(init.headers);
  if (key) headers.set("authorization", `Bearer ${key}`);
  try {
    return await fetch(path, { ...init, headers });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError("The server does not answer. Is it running?", 0);
  }
}

function askKey(wrong: boolean): Promise<boolean> {
  answer ??= new Promise<boolean>((resolve) => {
    give = resolve;
    keyAsked.value = { wrong };
  });
  return answer;
}

async function errorOf(response: Response): Promise<ApiError> {
  const body: unknown = await response.json().catch(() => null);
  return errorFrom(body, response.status);
}

/** Return the error that a body of OpenAI's format holds. */
export function errorFrom(body: unknown, status: number): ApiError {
  const error = (body as { error?: { message?: string; param?: string | null } } | null)?.error;
  return new ApiError(error?.message ?? `The server answered with status ${status}.`, status, error?.param ?? "");
}
