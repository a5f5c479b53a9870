import { computed, effect, signal } from "@preact/signals";
import { hello } from "../api/live";
import type { Shape } from "../cache/ring";
import { Strip } from "./Strip";
import { traces } from "./trace";

const STORE = "ringkv.explained";
const shown = signal(localStorage.getItem(STORE) === null);
const hasPicture = computed(() => traces.value.size > 0);

// The picture itself takes the place of its explanation.
effect(() => {
  if (hasPicture.value) shown.value = false;
});

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
          The newest tokens: first the prompt's last ones. Each new token overwrites the oldest one, at the{" "}
          <b>write head</b> ▾, which may begin at any of its entries. When it returns to the ring's first entry, the
          ring has <b>wrapped</b>.
        </dd>
        <dt class="swatch swatch-free">Free</dt>
        <dd>Entries that hold no token yet.</dd>
      </dl>
      <p>
        What is in none of these is evicted: the model has read it, and no longer sees it. A prompt that fits is kept
        whole. The server sets how many entries are sinks and ring, and a request its budget.
      </p>
      <Policies />
    </details>
  );
}

const POLICIES: Record<string, string> = {
  full: "keeps every token",
  streaming: "has sinks and a ring",
  snapkv: "has sinks and selected tokens, and appends new ones",
  snapstream: "has sinks, selected tokens and a ring",
  arkvale: "keeps every token, and each step reads those that matter",
  scissorhands: "reviews its entries and evicts those whose attention was mostly low",
};

/** What the policies keep: those that the server offers, and those that need slots of their own. */
function Policies() {
  const known = hello.value?.policies;
  if (!known) return null;
  const names = Object.keys(POLICIES);
  const others = names.filter((name) => !known.includes(name));
  return (
    <>
      <p>Policies: {explained(names.filter((name) => known.includes(name)))}.</p>
      {others.length > 0 && (
        <p>
          Not of this server, which needs <code>--kv-policy</code> for them: {explained(others)}.
        </p>
      )}
    </>
  );
}

function explained(names: string[]) {
  return names.map((name, i) => (
    <>
      {i > 0 && "; "}
      <b>{name}</b> {POLICIES[name]}
    </>
  ));
}
