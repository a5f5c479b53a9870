import { useId, useState } from "preact/hooks";
import { hasKey } from "../api/client";
import { Dialog } from "../ui/Dialog";
import { type Conversation, update } from "./conversations";
import { requestFields, type Settings } from "./settings";

interface Props {
  conversation: Conversation;
  onClose: () => void;
}

type Field = [keyof Settings, string, string, string];

/** field, label, what an empty one means, what it does */
const SAMPLING: Field[] = [
  ["temperature", "Temperature", "1", "0 always takes the most likely token."],
  ["topP", "Top p", "1", "Sample among the most likely tokens of this total probability."],
  ["maxTokens", "Max tokens", "1024", "Longest answer."],
  ["seed", "Seed", "any", "The same seed samples the same answer."],
];

export function SettingsDialog({ conversation, onClose }: Props) {
  const [values, setValues] = useState(conversation.settings);
  const [fault, setFault] = useState("");
  const set = (field: keyof Settings, value: string) => setValues({ ...values, [field]: value });
  const submit = (event: Event) => {
    event.preventDefault();
    try {
      requestFields(values);
    } catch (error) {
      setFault(error instanceof Error ? error.message : String(error));
      return;
    }
    update(conversation.id, (old) => ({
      ...old,
      settings: { ...values, policy: old.settings.policy, budget: old.settings.budget },
    }));
    onClose();
  };
  return (
    <Dialog title="Settings of this chat" onClose={onClose}>
      <form onSubmit={submit}>
        <label class="field">
          <span>System message</span>
          <textarea rows={3} value={values.system} onInput={(event) => set("system", event.currentTarget.value)} />
        </label>
        <div class="grid">
          {SAMPLING.map((field) => (
            <NumberField
              key={field[0]}
              field={field}
              value={values[field[0]]}
              onValue={(value) => set(field[0], value)}
            />
          ))}
        </div>
        <label class="field">
          <span>Other fields of the request, as JSON</span>
          <textarea
            rows={2}
            class="mono"
            placeholder={'{"top_k": 40, "kv_select": "keydiff"}'}
            value={values.extra}
            onInput={(event) => set("extra", event.currentTarget.value)}
          />
        </label>
        {fault && (
          <p class="fault" role="alert">
            {fault}
          </p>
        )}
        <p class="dialog-foot">
          {!hasKey() && (
            <a href="/docs" target="_blank" rel="noreferrer">
              All fields
            </a>
          )}
          <span class="push" />
          <button type="submit" class="primary">
            Save
          </button>
        </p>
      </form>
    </Dialog>
  );
}

function NumberField({ field, value, onValue }: { field: Field; value: string; onValue: (value: string) => void }) {
  const [, label, empty, help] = field;
  const id = useId();
  return (
    <label class="field">
      <span>{label}</span>
      <input
        inputMode="decimal"
        value={value}
        placeholder={empty}
        aria-describedby={id}
        onInput={(event) => onValue(event.currentTarget.value)}
      />
      <small id={id}>{help}</small>
    </label>
  );
}
