import { signal } from "@preact/signals";
import type { Shape } from "../cache/ring";
import { Strip } from "./Strip";

const STORE = "ringkv.explained";
const shown = signal(localStorage.getItem(STORE) === null);

const EXAMPLE: Shape = {
  policy: "snapstream",
  prompt: 2000,
  seen: 2037,
  sinks: 4,
  selected: 60,
  protected: 64,
  base: 4,
  ring: 32,
  again: 32,
  capacity: 96,
};

/** What the picture shows, in the words of the glossary. */
export function Explain() {
  return (
    <details
      class="explain"
      open={shown.value}
      onToggle={(event) => {
        shown.value = event.currentTarget.open;
        if (!shown.value) localStorage.setItem(STORE, "1");
      }}
    >
      <summary>What am I looking at?</summary>
      <p>
        A model stores keys and values of every token it has seen. An <b>entry</b> is what it stores of one token. A
        full cache grows with every token. Here each request has a <b>slot</b> of fixed size:
      </p>
      <Strip slot={EXAMPLE} own />
      <dl>
        <dt class="swatch swatch-sinks">Sinks</dt>
        <dd>The first tokens of the prompt. They are never evicted.</dd>
        <dt class="swatch swatch-selected">Selected</dt>
        <dd>
          The prompt tokens with the highest scores: those that its last tokens attend to. Each head selects its own.
        </dd>
        <dt class="swatch swatch-ring">Ring</dt>
        <dd>
          The newest tokens. Each new token overwrites the oldest one, at the <b>write head</b> ▾. When the head returns
          to the first entry, the ring has <b>wrapped</b>.
        </dd>
        <dt class="swatch swatch-free">Free</dt>
        <dd>Entries that hold no token yet.</dd>
      </dl>
      <p>What is in none of these is evicted: the model has read it, and no longer sees it.</p>
    </details>
  );
}
