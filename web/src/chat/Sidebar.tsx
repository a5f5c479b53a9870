import { useState } from "preact/hooks";
import { forgetPicture } from "../memory/pictures";
import { Dialog } from "../ui/Dialog";
import { Icon } from "../ui/Icon";
import { IconButton } from "../ui/IconButton";
import { type Conversation, currentId, exported, listed, open, remove, rename, storageFault } from "./conversations";
import { focusComposer } from "./editing";
import { running, stop } from "./exchange";
import { listShown } from "./layout";

export function Sidebar({ onNew }: { onNew: () => void }) {
  return (
    <aside class={`sidebar ${listShown.value ? "is-shown" : ""}`} aria-label="Conversations">
      <button type="button" class="new-chat" onClick={onNew} title="New chat (Ctrl+K)">
        <Icon name="plus" />
        New chat
        <kbd>Ctrl K</kbd>
      </button>
      <ul>
        {listed.value.map((one) => (
          <Entry key={one.id} conversation={one} />
        ))}
      </ul>
      {storageFault.value && (
        <p class="fault" role="alert">
          {storageFault.value}
        </p>
      )}
      <p class="note">Conversations stay in this browser.</p>
    </aside>
  );
}

function Entry({ conversation }: { conversation: Conversation }) {
  const [asks, setAsks] = useState<"rename" | "delete" | null>(null);
  const { id, title } = conversation;
  const isCurrent = id === currentId.value;
  return (
    <li class={isCurrent ? "is-current" : undefined}>
      <button
        type="button"
        class="title"
        aria-current={isCurrent ? "true" : undefined}
        onClick={() => {
          open(id);
          listShown.value = false;
        }}
      >
        {running.value.has(id) && <span class="pulse" role="img" aria-label="running" />}
        <span>{title}</span>
      </button>
      <span class="tools">
        <IconButton icon="edit" label={`Rename ${title}`} title="Rename" onClick={() => setAsks("rename")} />
        <IconButton
          icon="download"
          label={`Export ${title}`}
          title="Export as JSON"
          onClick={() => download(conversation)}
        />
        <IconButton icon="trash" label={`Delete ${title}`} title="Delete" onClick={() => setAsks("delete")} />
      </span>
      {asks === "rename" && <RenameDialog conversation={conversation} onClose={() => setAsks(null)} />}
      {asks === "delete" && <DeleteDialog conversation={conversation} onClose={() => setAsks(null)} />}
    </li>
  );
}

interface Asked {
  conversation: Conversation;
  onClose: () => void;
}

function RenameDialog({ conversation, onClose }: Asked) {
  const [title, setTitle] = useState(conversation.title);
  const submit = (event: Event) => {
    event.preventDefault();
    if (title.trim()) rename(conversation.id, title.trim());
    onClose();
  };
  return (
    <Dialog title="Rename" onClose={onClose}>
      <form onSubmit={submit}>
        <label class="field">
          <span>Title</span>
          <input value={title} onInput={(event) => setTitle(event.currentTarget.value)} />
        </label>
        <p class="dialog-foot">
          <button type="submit" class="primary">
            Rename
          </button>
        </p>
      </form>
    </Dialog>
  );
}

function DeleteDialog({ conversation, onClose }: Asked) {
  const accept = () => {
    stop(conversation.id);
    onClose();
    remove(conversation.id);
    forgetPicture(conversation.id);
    setTimeout(focusComposer); // after the dialog has given the focus back to a button that is gone
  };
  return (
    <Dialog title="Delete" onClose={onClose}>
      <p>“{conversation.title}” is kept in this browser only, so it cannot be restored.</p>
      <p class="dialog-foot">
        <button type="button" onClick={onClose}>
          Keep it
        </button>
        <button type="button" class="danger" onClick={accept}>
          Delete
        </button>
      </p>
    </Dialog>
  );
}

function download(conversation: Conversation): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([exported(conversation)], { type: "application/json" }));
  link.download = `${conversation.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
