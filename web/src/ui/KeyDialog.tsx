import { useState } from "preact/hooks";
import { giveKey, keyAsked } from "../api/client";
import { Dialog } from "./Dialog";

/** Asks for the API key when the server wants one. The key stays in this tab. */
export function KeyDialog() {
  return keyAsked.value ? <KeyForm wrong={keyAsked.value.wrong} /> : null;
}

function KeyForm({ wrong }: { wrong: boolean }) {
  const [key, setKey] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    giveKey(key.trim());
  };
  return (
    <Dialog title="API key" onClose={() => giveKey(null)}>
      <form onSubmit={submit}>
        <p>
          {wrong ? "The server does not know this key." : "This server asks for a key."} It is kept in this tab until
          you close it.
        </p>
        <label class="field">
          <span>Key</span>
          <input
            type="password"
            autocomplete="off"
            value={key}
            onInput={(event) => setKey(event.currentTarget.value)}
          />
        </label>
        <p class="dialog-foot">
          <button type="submit" class="primary" disabled={!key.trim()}>
            Use this key
          </button>
        </p>
      </form>
    </Dialog>
  );
}
