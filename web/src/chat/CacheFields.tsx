import { hello } from "../api/live";
import { type Conversation, update } from "./conversations";
import { budgetNote } from "./example";

/** The cache settings of the next request: they are what this page is about, so they are always in sight. */
export function CacheFields({ conversation }: { conversation: Conversation }) {
  const { id, settings } = conversation;
  const known = hello.value;
  const set = (change: Partial<typeof settings>) =>
    update(id, (old) => ({ ...old, settings: { ...old.settings, ...change } }));
  const standard = known?.default_kv.policy ?? "";
  const readsPages = (settings.policy || standard) === "arkvale";
  const note = budgetNote(conversation);
  const budget = known?.default_kv.budget ?? known?.limits.capacity;
  return (
    <span class="cache-fields">
      <label>
        <span class="off-screen">Cache policy</span>
        <select
          value={settings.policy}
          title="Cache policy: which tokens are kept"
          onChange={(event) => set({ policy: event.currentTarget.value })}
        >
          <option value="">{standard || "policy"}</option>
          {known?.policies
            .filter((name) => name !== standard)
            .map((name) => (
              <option key={name}>{name}</option>
            ))}
        </select>
      </label>
      <label title={`Budget: entries that ${readsPages ? "a step reads" : "the request may hold"}`}>
        <span>budget</span>
        <input
          inputMode="numeric"
          size={6}
          value={settings.budget}
          placeholder={budget ? String(budget) : ""}
          {...(note && { "aria-describedby": "budget-note" })}
          onInput={(event) => set({ budget: event.currentTarget.value })}
        />
      </label>
      {note && (
        <small id="budget-note" class="note">
          {note}
        </small>
      )}
    </span>
  );
}
