import { useEffect } from "preact/hooks";
import { connection, hello, lostWhy, model } from "./api/live";
import { ChatView } from "./chat/ChatView";
import { listShown } from "./chat/layout";
import { Dashboard } from "./dashboard/Dashboard";
import { go, pathOf, type View, view } from "./route";
import { nextTheme, theme } from "./theme";
import { announced } from "./ui/announce";
import { Icon } from "./ui/Icon";
import { IconButton } from "./ui/IconButton";
import { KeyDialog } from "./ui/KeyDialog";

const TITLES: Record<View, string> = { chat: "ringkv", dashboard: "Dashboard · ringkv" };

export function App() {
  useEffect(() => {
    document.title = TITLES[view.value];
  }, [view.value]);
  return (
    <div class="app">
      <Header />
      <Lost />
      {view.value === "chat" ? <ChatView /> : <Dashboard />}
      <KeyDialog />
      <output class="off-screen" aria-live="polite">
        {announced.value}
      </output>
    </div>
  );
}

function Header() {
  return (
    <header class="top">
      {view.value === "chat" && (
        <button
          type="button"
          class="quiet narrow-only"
          aria-label="Conversations"
          aria-expanded={listShown.value}
          onClick={() => {
            listShown.value = !listShown.value;
          }}
        >
          <Icon name="menu" />
        </button>
      )}
      <h1>
        <Mark />
        ringkv
      </h1>
      <nav aria-label="Views">
        <ViewLink name="chat">Chat</ViewLink>
        <ViewLink name="dashboard">Dashboard</ViewLink>
      </nav>
      <span class="push" />
      <ModelPicker />
      <ThemeSwitch />
    </header>
  );
}

function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <circle cx="16" cy="16" r="11" class="mark-ring" />
      <path d="M16 5a11 11 0 0 1 9.5 5.5" class="mark-sinks" />
      <path d="M25.5 10.5a11 11 0 0 1 0 11" class="mark-selected" />
    </svg>
  );
}

function ViewLink({ name, children }: { name: View; children: string }) {
  const follow = (event: MouseEvent) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(name);
  };
  return (
    <a href={pathOf(name)} aria-current={view.value === name ? "page" : undefined} onClick={follow}>
      {children}
    </a>
  );
}

function ModelPicker() {
  const names = hello.value?.models ?? [];
  const shown = model.value || hello.value?.model || "";
  if (names.length < 2) return <span class="model">{shown}</span>;
  return (
    <select
      class="model"
      aria-label="Model"
      value={shown}
      onChange={(event) => {
        model.value = event.currentTarget.value;
      }}
    >
      {names.map((name) => (
        <option key={name}>{name}</option>
      ))}
    </select>
  );
}

const THEME_ICONS = { auto: "auto", light: "sun", dark: "moon" } as const;
const THEME_WORDS = { auto: "as the system", light: "light", dark: "dark" } as const;

function ThemeSwitch() {
  const label = `Colours: ${THEME_WORDS[theme.value]}`;
  return <IconButton icon={THEME_ICONS[theme.value]} label={label} onClick={nextTheme} />;
}

function Lost() {
  if (connection.value !== "lost") return null;
  return (
    <p class="banner" role="alert">
      No live data: {lostWhy.value} Trying again.
    </p>
  );
}
