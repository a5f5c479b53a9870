import type { ComponentChildren } from "preact";
import { hello, recentTicks, tick } from "../api/live";
import { budget, isRing, nextOverwritten } from "../cache/ring";
import { evictedWords, inWords, nextWords } from "../cache/words";
import { currentId } from "../chat/conversations";
import { bytes, count, rate } from "../text/format";
import { Dial } from "./Dial";
import { Explain } from "./Explain";
import { HeldChart } from "./HeldChart";
import { KeptText } from "./KeptText";
import { rates, WINDOW } from "./rates";
import { Slots } from "./Slots";
import { Strip } from "./Strip";
import { type Held, type Trace, traces } from "./trace";

const PREFILLING =
  "Staging holds your prompt while it is prefilled. Then its slot keeps a part of it, which is shown here.";

const OF_ALL = `Of all requests, in the last ${WINDOW} seconds`;
const UNSEEN = "The answer was too short for its slot to be seen.";
const NOTHING = "Send a message to see what its slot keeps.";

export function MemoryPanel() {
  const trace = traces.value.get(currentId.value);
  return (
    <aside class="memory" aria-label="Memory">
      <h2>Memory</h2>
      <Figures />
      <Explain />
      {trace?.slot ? <Own trace={trace} slot={trace.slot} /> : <p class="note">{whyNoSlot(trace)}</p>}
      {trace?.id && (
        <Section title="What was kept of your prompt">
          <KeptText trace={trace} conversation={currentId.value} />
        </Section>
      )}
      <Section title={trace?.slot ? "Other slots" : "Slots"}>
        <Slots {...(trace?.running && { except: trace.id })} />
        <Reserved />
      </Section>
    </aside>
  );
}

function whyNoSlot(trace: Trace | undefined): string {
  if (!trace) return NOTHING;
  if (trace.running) return PREFILLING;
  return trace.id ? UNSEEN : NOTHING;
}

function Section({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <section>
      <h3>{title}</h3>
      {children}
    </section>
  );
}

/** The small numbers. */
function Figures() {
  const now = tick.value;
  const speed = rates(recentTicks.value);
  return (
    <dl class="figures">
      <Figure name="tokens/s" title={OF_ALL} value={rate(speed.output)} />
      <Figure name="prefill/s" title={OF_ALL} value={rate(speed.prompt)} />
      <Figure name="queue" title="Requests that wait for a slot" value={count(now?.waiting ?? 0)} />
      <Figure name="steps" title="Each samples one token for every running request" value={count(now?.steps ?? 0)} />
    </dl>
  );
}

export function Figure({ name, value, title }: { name: string; value: string; title?: string }) {
  return (
    <div title={title}>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

function Own({ trace, slot }: { trace: Trace; slot: Held }) {
  const next = nextOverwritten(slot);
  const text = next === null ? "" : (trace.texts[next] ?? "");
  return (
    <>
      <section class="own">
        <h3>
          {trace.running ? "Your request" : "Your last request"}
          <small>
            {slot.policy}, budget {count(budget(slot))}
          </small>
        </h3>
        <div class="own-picture">
          <Strip slot={slot} own />
          {isRing(slot) && slot.ring > 0 && <Dial slot={slot} />}
        </div>
        <p class="words" data-testid="own-words">
          {inWords(slot)}. {evictedWords(slot)}.
        </p>
        {trace.running && <p class="words next">{nextWords(slot, text)}</p>}
      </section>
      <Section title="Memory held">
        <HeldChart samples={trace.samples} />
      </Section>
    </>
  );
}

function Reserved() {
  const limits = hello.value?.limits;
  if (!limits) return null;
  return (
    <p class="note">
      The server reserves {bytes(limits.held_bytes)} in all: {count(limits.slots)} slots of {bytes(limits.slot_bytes)},{" "}
      {bytes(limits.staging_bytes)} of staging, where prompts are prefilled whole, and {bytes(limits.store_bytes)} for
      the prefix store, which keeps earlier prompts. A smaller budget makes a request's steps faster; its slot has the
      same size.
    </p>
  );
}
