import { expect, test } from "@playwright/test";
import { document, finished, message, open, ownWords, paste, set } from "./page.ts";

test("the picture changes as the ring wraps", async ({ page }) => {
  await open(page);
  await set(page, { Budget: "64", Temperature: "0", "Max tokens": "150", "Other fields": '{"ignore_eos": true}' });
  await paste(page, document(300));
  await message(page).fill("What is in the cellar?");
  await message(page).press("Enter");
  await expect(ownWords(page)).toContainText(/4 sinks, \d+ selected, ring of \d+, write head at \d+, wrapped 0 times/);
  const head = page.locator(".own .head");
  const at = await head.getAttribute("style");
  await expect(head).not.toHaveAttribute("style", at ?? "");
  await expect(page.getByText(/The next token goes into entry \d+ and overwrites token \d+/)).toBeVisible();
  await expect(ownWords(page)).toContainText(/wrapped [1-9]\d* times?/);
  await finished(page);

  // The page counts by formula, the server as it writes.
  const said = await page.locator(".answer footer small").textContent();
  const wraps = /ring wrapped (\d+) time/.exec(said ?? "")?.[1];
  expect(Number(wraps)).toBeGreaterThan(0);
  expect(await page.locator(".dial text").first().textContent()).toBe(wraps);
  await expect(page.getByRole("img", { name: /Memory against tokens seen.*A full cache would hold/ })).toBeVisible();
});

test("the prompt is shaded by what was kept, by layer and head too", async ({ page }) => {
  await open(page);
  await set(page, { Budget: "96", Temperature: "0", "Max tokens": "4" });
  await paste(page, document(700));
  await message(page).fill("Which item is beside the boxes?");
  await message(page).press("Enter");
  const text = page.getByRole("region", { name: "The prompt, shaded" });
  await expect(text).toContainText("Item 0 of the list");
  await expect(text).toContainText("Which item is beside the boxes?");
  expect(await text.locator(".k0").count()).toBeGreaterThan(0);
  expect(await text.locator(".role-sink.k5").count()).toBeGreaterThan(0);
  expect(await text.locator(".role-ring").count()).toBeGreaterThan(0);
  await expect(page.getByText(/Each head keeps 96 of \d+ prompt tokens/)).toBeVisible();
  const all = await text.innerHTML();
  await page.getByLabel("layer").selectOption("3");
  await page.getByLabel("head").selectOption("1");
  await expect(page.getByText(/Each head keeps 96 of .* kept by no head\./)).toBeVisible();
  expect(await text.innerHTML()).not.toBe(all);
  await finished(page);
});

test("a prompt that fits is kept whole, and a request for a full cache has no ring", async ({ page }) => {
  await open(page);
  await set(page, { "Max tokens": "4" });
  await page.getByLabel("Cache policy").selectOption("full");
  await message(page).fill("Hi");
  await message(page).press("Enter");
  await finished(page);
  await expect(ownWords(page)).toContainText("nothing is overwritten");
  await expect(page.getByText(/fits, so all of it is kept/)).toBeVisible();
  await expect(page.locator(".dial")).toHaveCount(0);
});
