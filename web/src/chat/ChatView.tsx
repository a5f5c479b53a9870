import { useEffect } from "preact/hooks";
import { MemoryPanel } from "../memory/MemoryPanel";
import { Composer } from "./Composer";
import { comparisonOf } from "./compare";
import { current, currentId, startNew } from "./conversations";
import { focusComposer } from "./editing";
import { stop } from "./exchange";
import { half, listShown } from "./layout";
import { Messages } from "./Messages";
import { Sidebar } from "./Sidebar";

function newChat(): void {
  startNew();
  listShown.value = false;
  half.value = "chat";
  focusComposer();
}

export function ChatView() {
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) focusComposer(); // a phone would show its keyboard
    const onKey = (event: KeyboardEvent) => {
      if (document.querySelector("dialog[open]")) return;
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        newChat();
      } else if (event.key === "Escape") {
        stop(currentId.value);
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return (
    <div class={`workspace shows-${half.value} ${comparisonOf(current.value) ? "compares" : ""}`}>
      <Sidebar onNew={newChat} />
      <main class="chat" aria-label="Chat">
        <Messages conversation={current.value} />
        <Composer conversation={current.value} />
      </main>
      <MemoryPanel />
      <Halves />
    </div>
  );
}

/** The two halves as tabs, in a narrow window. */
function Halves() {
  return (
    <nav class="halves" aria-label="Parts of the page">
      {(["chat", "memory"] as const).map((name) => (
        <button
          type="button"
          key={name}
          aria-pressed={half.value === name}
          onClick={() => {
            half.value = name;
          }}
        >
          {name === "chat" ? "Chat" : "Memory"}
        </button>
      ))}
    </nav>
  );
}
