import { useEffect, useRef, useState } from "preact/hooks";
import { hello } from "../api/live";
import { count } from "../text/format";
import { Icon } from "../ui/Icon";
import { IconButton } from "../ui/IconButton";
import { CacheFields } from "./CacheFields";
import { compare } from "./compare";
import { type Conversation, newId, wireMessages } from "./conversations";
import {
  attach,
  attached,
  attachFiles,
  countLater,
  countNothing,
  isLong,
  overLimit,
  refused,
  total,
} from "./documents";
import { beforeEdit, cancelEdit, draft, editing } from "./editing";
import { cautionOf, detachFrom } from "./example";
import { refusals, running, send, stop } from "./exchange";
import { DocChip } from "./Messages";
import { SettingsDialog } from "./SettingsDialog";
import { hiddenSettings, requestFields } from "./settings";

/** The messages of a request with the text and documents that are being written. */
function drafted(conversation: Conversation) {
  const next = { id: newId(), role: "user" as const, text: draft.value, docs: attached.value };
  return wireMessages(conversation.settings, [...beforeEdit(conversation), next]);
}

export function Composer({ conversation }: { conversation: Conversation }) {
  const [settingsShown, setSettingsShown] = useState(false);
  const [fault, setFault] = useState("");
  const field = useRef<HTMLTextAreaElement>(null);
  const files = useRef<HTMLInputElement>(null);
  const isRunning = running.value.has(conversation.id);
  const changed = hiddenSettings(conversation.settings);
  const isEmpty = !draft.value.trim() && attached.value.length === 0;
  const tooLong = isEmpty ? "" : overLimit(total.value);

  useEffect(() => {
    if (isEmpty) countNothing();
    else countLater(drafted(conversation));
  }, [draft.value, attached.value, conversation.id, conversation.settings.system, isEmpty]);

  useEffect(() => {
    const box = field.current;
    if (!box) return;
    box.style.height = "auto";
    box.style.height = `${box.scrollHeight}px`;
  }, [draft.value]);

  const canBeSent = () => {
    if (isEmpty || isRunning || tooLong) return false;
    try {
      requestFields(conversation.settings);
    } catch (error) {
      setFault(error instanceof Error ? error.message : String(error));
      return false;
    }
    setFault("");
    return true;
  };

  const submit = () => {
    if (!canBeSent()) return;
    const before = beforeEdit(conversation);
    const [text, docs] = [draft.value.trim(), attached.value];
    cancelEdit();
    send(conversation, before, text, docs);
  };

  const submitToAll = () => {
    if (canBeSent()) void compare(conversation, beforeEdit(conversation), draft.value.trim(), attached.value);
  };

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    } else if (event.key === "Escape" && editing.value && !isRunning) {
      cancelEdit();
    }
  };

  const onPaste = (event: ClipboardEvent) => {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (pasted.length > 0) void attachFiles(pasted);
    else if (isLong(text)) void attach(`Pasted text ${attached.value.length + 1}`, text);
    else return;
    event.preventDefault();
  };

  const onDrop = (event: DragEvent) => {
    event.preventDefault();
    void attachFiles(event.dataTransfer?.files ?? []);
  };

  const caution = cautionOf(attached.value);
  const faults = [fault, refusals.value.get(conversation.id), refused.value, tooLong].filter(Boolean);
  return (
    <>
      <form
        class="composer column"
        aria-label="Message"
        onSubmit={(event) => {
          event.preventDefault();
          submit();
        }}
        onDrop={onDrop}
        onDragOver={(event) => event.preventDefault()}
      >
        {faults.map((one) => (
          <p class="fault" role="alert" key={one}>
            {one}
          </p>
        ))}
        <div class="box">
          {(attached.value.length > 0 || editing.value) && (
            <div class="chips">
              {editing.value && (
                <button type="button" class="chip" onClick={cancelEdit}>
                  Editing; cancel
                </button>
              )}
              {attached.value.map((doc) => (
                <DocChip key={doc.id} doc={doc} onRemove={() => detachFrom(conversation.id, doc)} />
              ))}
            </div>
          )}
          {caution && <p class="note">{caution}</p>}
          <textarea
            id="composer"
            ref={field}
            rows={1}
            value={draft.value}
            placeholder={attached.value.length > 0 ? "Ask about it" : "Message, or paste a long document"}
            aria-label="Message"
            aria-describedby="composer-help"
            onInput={(event) => {
              draft.value = event.currentTarget.value;
            }}
            onKeyDown={onKeyDown}
            onPaste={onPaste}
          />
          <div class="row">
            <IconButton icon="attach" label="Attach a text file" onClick={() => files.current?.click()} />
            <input
              ref={files}
              type="file"
              multiple
              hidden
              aria-label="Text files"
              onChange={(event) => {
                void attachFiles([...(event.currentTarget.files ?? [])]);
                event.currentTarget.value = "";
              }}
            />
            <CacheFields conversation={conversation} />
            <IconButton
              icon="sliders"
              label="Settings"
              title="System message and sampling"
              onClick={() => setSettingsShown(true)}
            >
              {changed > 0 && <small class="wide-only">{count(changed)} set</small>}
            </IconButton>
            <span class="ends">
              <Size />
              <button
                type="button"
                class="quiet"
                title="Answer under several budgets, side by side"
                disabled={isEmpty || isRunning || Boolean(tooLong)}
                onClick={submitToAll}
              >
                <Icon name="columns" />
                <span class="wide-only">Compare budgets</span>
              </button>
              {isRunning ? (
                <button
                  type="button"
                  class="primary round"
                  aria-label="Stop"
                  title="Stop (Esc)"
                  onClick={() => stop(conversation.id)}
                >
                  <Icon name="stop" />
                </button>
              ) : (
                <button
                  type="submit"
                  class="primary round"
                  aria-label="Send"
                  title="Send (Enter)"
                  disabled={isEmpty || Boolean(tooLong)}
                >
                  <Icon name="send" />
                </button>
              )}
            </span>
          </div>
        </div>
        <p id="composer-help" class="off-screen">
          Enter sends, Shift and Enter begin a line, Escape stops the answer, Control and K begin a new chat.
        </p>
      </form>
      {settingsShown && <SettingsDialog conversation={conversation} onClose={() => setSettingsShown(false)} />}
    </>
  );
}

/** How long the prompt is, beside how long it may be. */
function Size() {
  const limits = hello.value?.limits;
  if (total.value === null || !limits) return null;
  const longest = Math.min(limits.prompt_tokens, limits.context - 1);
  return (
    <small
      class={`size ${total.value > longest ? "is-over" : ""}`}
      title="Tokens of the whole prompt, and the most this server takes"
    >
      {count(total.value)} / {count(longest)} <span class="wide-only">tokens</span>
    </small>
  );
}
