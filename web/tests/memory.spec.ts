import { expect, test } from "@playwright/test";
import { document, finished, message, open, ownWords, paste, set } from "./page.ts";

test("the picture changes as the ring wraps", async ({ page }) => {
  await open(page);
  await set(page, {
    Budget: "48",
    Temperature: "0",
    "Max tokens": "40",
    "Other fields": '{"ignore_eos": true, "kv_recent": 12}',
  });
  await paste(page, document(500));
  await message(page).fill("What is in the cellar?");
  await message(page).press("Enter");
  // Every text that is shown, so that none is missed between two looks.
  await ownWords(page).evaluate((element) => {
    const seen = [element.textContent];
    Object.assign(window, { seen });
    new MutationObserver(() => seen.push(element.textContent)).observe(element, { characterData: true, subtree: true });
  });
  await finished(page);

  const seen = await page.evaluate(() => (window as unknown as { seen: string[] }).seen);
  const states = seen.map((text) =>
    /4 sinks, 32 selected, ring of 12, write head at (\d+), wrapped (\d+) time/.exec(text),
  );
  expect(states.every((one) => one !== null)).toBe(true);
  expect(new Set(states.map((one) => one?.[1])).size).toBeGreaterThan(1);
  const turns = states.map((one) => Number(one?.[2]));
  expect(turns).toEqual([...turns].sort((a, b) => a - b));
  expect(turns.at(-1)).toBeGreaterThan(turns[0] ?? 0);

  // The page counts by formula, the server as it writes.
  const said = await page.locator(".answer footer small").textContent();
  const wraps = /ring wrapped (\d+) time/.exec(said ?? "")?.[1];
  expect(Number(wraps)).toBeGreaterThan(0);
  expect(Number(wraps) - (turns.at(-1) ?? 0)).toBeLessThanOrEqual(1); // the last tokens may be in no tick
  await expect(page.getByRole("img", { name: /Memory against tokens seen.*A full cache would hold/ })).toBeVisible();
});

test("the prompt is shaded by what was kept, by layer and head too", async ({ page }) => {
  await open(page);
  await set(page, { Budget: "96", Temperature: "0", "Max tokens": "4" });
  await paste(page, document(600));
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
