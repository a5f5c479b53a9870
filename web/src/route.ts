/** The two views of the page, by path. */

import { signal } from "@preact/signals";

export type View = "chat" | "dashboard";

const PATHS: Record<View, string> = { chat: "/", dashboard: "/dashboard" };

export const view = signal<View>(fromPath());

export function pathOf(name: View): string {
  return PATHS[name];
}

export function go(name: View): void {
  if (view.value === name) return;
  history.pushState(null, "", PATHS[name]);
  view.value = name;
}

addEventListener("popstate", () => {
  view.value = fromPath();
});

function fromPath(): View {
  return location.pathname.replace(/\/$/, "") === PATHS.dashboard ? "dashboard" : "chat";
}
