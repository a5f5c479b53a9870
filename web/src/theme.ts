/** Dark and light: the system's, unless a person chooses. */

import { effect, signal } from "@preact/signals";

export type Theme = "auto" | "light" | "dark";

const STORE = "ringkv.theme";
const NEXT: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
const darkSystem = matchMedia("(prefers-color-scheme: dark)");

export const theme = signal<Theme>(stored());
/** Changes with every change of colours, so that canvases are drawn again. */
export const colours = signal(0);

export function nextTheme(): void {
  theme.value = NEXT[theme.value];
  localStorage.setItem(STORE, theme.value);
}

export function startTheme(): void {
  effect(() => {
    if (theme.value === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.dataset.theme = theme.value;
    colours.value = colours.peek() + 1;
  });
  darkSystem.addEventListener("change", () => {
    colours.value += 1;
  });
}

/** Return a colour of the style sheet, for a canvas. */
export function colour(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function stored(): Theme {
  const value = localStorage.getItem(STORE);
  return value === "light" || value === "dark" ? value : "auto";
}
