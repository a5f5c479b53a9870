/** What several tests do with the page. */

import AxeBuilder from "@axe-core/playwright";
import { expect, type Page } from "@playwright/test";

export const message = (page: Page) => page.getByRole("textbox", { name: "Message" });
export const send = (page: Page) => page.getByRole("button", { name: "Send" });
export const stop = (page: Page) => page.getByRole("button", { name: "Stop" });
export const answer = (page: Page) => page.getByRole("article", { name: "Answer" }).last();
export const ownWords = (page: Page) => page.getByTestId("own-words");

/** Wait until the page hears from the server. */
export async function open(page: Page, path = "/", model = "smollm2"): Promise<void> {
  await page.goto(path);
  await expect(page.getByText(model).first()).toBeVisible();
}

/** Ask for a short greedy answer, which is the same every time. */
export async function set(page: Page, fields: Record<string, string>): Promise<void> {
  const { Budget, ...others } = fields;
  if (Budget !== undefined) await page.getByLabel("budget").fill(Budget);
  if (Object.keys(others).length === 0) return;
  await page.getByRole("button", { name: "Settings" }).click();
  const dialog = page.getByRole("dialog");
  for (const [label, value] of Object.entries(others)) await dialog.getByLabel(label).fill(value);
  await dialog.getByRole("button", { name: "Save" }).click();
}

export async function finished(page: Page): Promise<void> {
  await expect(page.getByRole("button", { name: "Answer again" })).toBeVisible({ timeout: 120_000 });
}

/** Paste as a person does: the text comes with the event. */
export async function paste(page: Page, text: string): Promise<void> {
  await message(page).evaluate((field, pasted) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", pasted);
    field.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
  }, text);
}

/** Return a text of about `tokens` tokens. */
export function document(tokens: number): string {
  const line = (i: number) => `Item ${i} of the list is stored in the cellar beside the old blue boxes.`;
  return Array.from({ length: Math.ceil(tokens / 18) }, (_, i) => line(i)).join("\n");
}

/** Whether nothing is wider than the screen. */
export function fits(page: Page): Promise<boolean> {
  return page.evaluate(() => window.document.documentElement.scrollWidth <= innerWidth);
}

/** Return the rules that are broken seriously, with the first element of each. */
export async function faults(page: Page): Promise<string[]> {
  const { violations } = await new AxeBuilder({ page }).analyze();
  return violations
    .filter((one) => one.impact === "serious" || one.impact === "critical")
    .map((one) => `${one.id}: ${one.nodes[0]?.html}`);
}
