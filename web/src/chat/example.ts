/** A long document to try the page with: a year of a lighthouse keeper's log, and one fact to ask for. */

import { hello } from "../api/live";
import { current, update } from "./conversations";
import { attach } from "./documents";
import { draft } from "./editing";

const TOKENS = 7000;
/** Of one entry, about. */
const ENTRY_TOKENS = 30;
const BUDGET = 512;
const ROOM = 600;

const WINDS = ["north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west"];
const SEAS = ["calm", "slight", "moderate", "rough", "very rough"];
const PASSED = [
  "two trawlers passed before noon",
  "no ship passed all day",
  "the mail boat came at four and brought oil",
  "a schooner waited in the bay for the tide",
  "the ferry was late and kept close to the shore",
  "a cutter asked for the depth at the pier",
  "fog hid the channel until the afternoon",
];
const DONE = ["Cleaned the lens.", "Wound the clock.", "Painted the rail.", "Filled the lamps.", "Mended the nets."];
const FACT = "Hid the spare key of the lamp room under the third step of the cellar stairs.";

/** Return a log of about so many tokens; the fact is at 60% of it. */
export function exampleText(tokens: number): string {
  const days = Math.max(10, Math.floor(tokens / ENTRY_TOKENS));
  const at = Math.floor(0.6 * days);
  const line = (day: number) => {
    const wind = WINDS[(day * 5) % WINDS.length];
    const sea = SEAS[(day * 3) % SEAS.length];
    const told = day === at ? FACT : DONE[day % DONE.length];
    return `Day ${day + 1}. Wind from the ${wind}, sea ${sea}; ${PASSED[(day * 4) % PASSED.length]}. ${told}`;
  };
  return Array.from({ length: days }, (_, day) => line(day)).join("\n");
}

/** Attach the document, and write a question under a small budget: the reader only has to press Enter. */
export async function attachExample(): Promise<void> {
  const limits = hello.value?.limits;
  const longest = limits ? Math.min(limits.prompt_tokens, limits.context - ROOM) - ROOM : TOKENS;
  const capacity = limits?.capacity ?? BUDGET;
  update(current.value.id, (old) => ({
    ...old,
    settings: { ...old.settings, temperature: "0", ...(capacity > BUDGET && { budget: String(BUDGET) }) },
  }));
  draft.value = "Where did the keeper hide the spare key?";
  document.getElementById("composer")?.focus();
  await attach("Keeper’s log", exampleText(Math.min(TOKENS, longest)));
}
