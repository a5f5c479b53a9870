import { hello, tick } from "../api/live";
import type { SlotState } from "../api/types";
import { evictedWords, inWords } from "../cache/words";
import { count, many } from "../text/format";
import { Strip } from "./Strip";
import { traces } from "./trace";

/** Every slot of the server; the page's own are marked. */
export function Slots({ except = "" }: { except?: string }) {
  const known = hello.value;
  const now = tick.value;
  if (!known || !now) return null;
  const own = new Set([...traces.value.values()].map((trace) => trace.id));
  const used = now.slots.filter((slot) => slot.id !== except);
  return (
    <div class="slots">
      {used.map((slot) => (
        <Slot key={slot.slot} slot={slot} own={own.has(slot.id)} />
      ))}
      {now.prompts.map((prompt) => (
        <p class="slot-name" key={prompt.id}>
          Prefill: {count(prompt.prefilled)} of {many(prompt.tokens, "token")}
          <progress max={prompt.tokens || 1} value={prompt.prefilled} aria-label="Prefill" />
        </p>
      ))}
      <p class="note">
        {now.free_slots === known.limits.slots
          ? `All ${many(known.limits.slots, "slot")} are free`
          : `${count(now.free_slots)} of ${many(known.limits.slots, "slot")} free`}
        {`, each with room for ${many(known.limits.capacity, "entry")}.`}
      </p>
    </div>
  );
}

function Slot({ slot, own }: { slot: SlotState; own: boolean }) {
  return (
    <details class="slot">
      <summary>
        <span class="slot-name">
          Slot {slot.slot}: {own ? "yours" : "another request"}, {slot.policy}, {count(slot.seen)} tokens
        </span>
        <Strip slot={slot} />
      </summary>
      <p class="words">
        {inWords(slot)}. {evictedWords(slot)}.
      </p>
    </details>
  );
}
