import { expect, type Page, test } from "@playwright/test";
import { answer, document, faults, finished, fits, message, open, paste, send, set, stop } from "./page.ts";

const comparison = (page: Page) => page.getByRole("region", { name: "Comparison of budgets" });
const columns = (page: Page) => comparison(page).getByRole("listitem");
const compare = (page: Page) => page.getByRole("button", { name: "Compare budgets" });

async function compared(page: Page): Promise<void> {
  await expect(columns(page)).not.toHaveCount(0);
  await expect(comparison(page).locator("[aria-busy=true]")).toHaveCount(0, { timeout: 120_000 });
}

/** Return a figure of each column. */
async function figures(page: Page, name: string): Promise<number[]> {
  const said = await columns(page).locator("div", { hasText: name }).locator("dd").allTextContents();
  return said.map((one) => Number(one.replaceAll(",", "").split(" ")[0]));
}

test("a question is answered under several budgets, and one answer is kept", async ({ page }) => {
  await open(page);
  await set(page, { "Max tokens": "24" });
  await paste(page, document(1000));
  await message(page).fill("Where are the items stored?");
  await expect(page.getByText(/^[\d,]+ tokens$/)).toBeVisible();
  await compare(page).focus();
  await page.keyboard.press("Enter");
  await expect(columns(page)).toHaveCount(5);
  await expect(stop(page)).toBeVisible();
  await compared(page);
  await expect(columns(page).locator(".prose")).toHaveCount(5);
  await expect(columns(page).nth(3).getByRole("heading")).toContainText("256 tokens");
  await expect(columns(page).last().getByText("the whole prompt")).toBeVisible();

  const [kept, evicted, cached] = [
    await figures(page, "kept"),
    await figures(page, "evicted"),
    await figures(page, "cached"),
  ];
  expect(kept).toEqual([...kept].sort((a, b) => a - b));
  expect(kept[3]).toBe(256);
  expect(kept[4]).toBeGreaterThan(1000); // no slot holds as many
  expect(evicted[4]).toBe(0);
  expect(evicted).toEqual([...evicted].sort((a, b) => b - a));
  for (const reused of cached.slice(1)) expect(reused).toBeGreaterThan(900); // the first has prefilled the prompt
  expect(await faults(page)).toEqual([]);

  await expect(message(page)).toHaveValue("Where are the items stored?");
  const words = await columns(page).nth(2).locator(".prose").textContent();
  await page
    .getByRole("button", { name: /^Keep this answer/ })
    .nth(2)
    .click();
  await expect(comparison(page)).toHaveCount(0);
  await expect(page.getByRole("article", { name: "You" })).toHaveCount(1);
  await expect(answer(page).locator(".prose")).toHaveText(words ?? "");
  await expect(message(page)).toHaveValue("");

  const [sent] = await Promise.all([
    page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions")),
    message(page)
      .fill("And why?")
      .then(() => message(page).press("Enter")),
  ]);
  expect(sent.postDataJSON().messages).toHaveLength(3);
  await finished(page);
});

test("a comparison is stopped and closed, and leaves nothing in the conversation", async ({ page }) => {
  await open(page);
  await set(page, { "Max tokens": "1500", "Other fields": '{"ignore_eos": true}' });
  await message(page).fill(
    "Tell a long story about a lighthouse and its keeper, and do not stop before the year ends.",
  );
  await compare(page).click();
  await expect(columns(page).first().locator(".prose")).not.toBeEmpty();
  await page.keyboard.press("Escape");
  await compared(page);
  await expect(columns(page).first()).toContainText("stopped");
  await page.getByRole("button", { name: "Close the comparison" }).click();
  await expect(comparison(page)).toHaveCount(0);
  await expect(page.getByRole("article")).toHaveCount(0);
  await expect(message(page)).toHaveValue(/^Tell a long story/);
  await expect(message(page)).toBeFocused();
});

test("a budget that the server refuses says why in its column", async ({ page }) => {
  await open(page);
  await set(page, { "Max tokens": "4", "Other fields": '{"kv_recent": 40}' });
  await paste(page, document(200));
  await message(page).fill("Where?");
  await compare(page).click();
  await compared(page);
  await expect(columns(page).first().getByRole("alert")).toContainText(/budget \d+ is less than .*raise it to \d+/);
  await expect(columns(page).last().getByRole("alert")).toHaveCount(0);
  await expect(columns(page).last().getByText("the whole prompt")).toBeVisible();
});

test.describe("on a phone", () => {
  test.use({ viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });

  test("columns are below each other, and nothing is wider than the screen", async ({ page }) => {
    await page.goto("/");
    await set(page, { "Max tokens": "4" });
    await paste(page, document(400));
    await message(page).fill("Where are the items?");
    await expect(send(page)).toBeInViewport({ ratio: 1 });
    await compare(page).tap();
    await compared(page);
    const boxes = await columns(page).evaluateAll((all) => all.map((one) => one.getBoundingClientRect().left));
    expect(new Set(boxes).size).toBe(1);
    expect(await fits(page)).toBe(true);
    await expect(compare(page)).toBeInViewport({ ratio: 1 });
  });
});
