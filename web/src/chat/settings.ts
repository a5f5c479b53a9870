/** What a conversation asks of the server. Empty fields leave a value to the server. */

export interface Settings {
  system: string;
  policy: string;
  budget: string;
  temperature: string;
  topP: string;
  maxTokens: string;
  seed: string;
  /** Other fields of the request, as a JSON object. */
  extra: string;
}

export const DEFAULTS: Settings = {
  system: "",
  policy: "",
  budget: "",
  temperature: "",
  topP: "",
  maxTokens: "",
  seed: "",
  extra: "",
};

const IN_SIGHT = new Set<keyof Settings>(["policy", "budget"]);

/** Return how many settings of the dialog are set: the others are in sight beside the message. */
export function hiddenSettings(settings: Settings): number {
  const fields = Object.keys(DEFAULTS) as (keyof Settings)[];
  return fields.filter((field) => !IN_SIGHT.has(field) && settings[field].trim()).length;
}

const NUMBERS: [keyof Settings, string][] = [
  ["budget", "kv_budget"],
  ["temperature", "temperature"],
  ["topP", "top_p"],
  ["maxTokens", "max_tokens"],
  ["seed", "seed"],
];

/** Return a request's fields. Raises Error, in words, for what is neither empty nor of its kind. */
export function requestFields(settings: Settings): Record<string, unknown> {
  const numbers = NUMBERS.filter(([field]) => settings[field].trim()).map(([field, name]) => [
    name,
    numberOf(settings[field], name),
  ]);
  const policy = settings.policy ? { kv_policy: settings.policy } : {};
  return { ...policy, ...Object.fromEntries(numbers), ...extraFields(settings.extra) };
}

function numberOf(text: string, name: string): number {
  const value = Number(text.replaceAll(",", ""));
  if (!Number.isFinite(value)) throw new Error(`${name} is “${text}”, which is not a number.`);
  return value;
}

export function extraFields(text: string): Record<string, unknown> {
  if (!text.trim()) return {};
  const fault = 'Other fields must be a JSON object, such as {"top_k": 40}.';
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(fault);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(fault);
  return value as Record<string, unknown>;
}
