import { expect, test } from "@playwright/test";
import { document, finished, message, open, ownWords, paste, set } from "./page.ts";

const LONG = { Budget: "48", Temperature: "0", "Other fields": '{"ignore_eos": true, "kv_recent": 12}' };

test("the picture changes as the ring wraps", async ({ page }) => {
  await open(page);
  await set(page, { ...LONG, "Max tokens": "1500" });
  await paste(page, document(500));
  await message(page).fill("What is in the cellar?");
  await message(page).press("Enter");
  await expect(ownWords(page)).toContainText(
    /^4 sinks, 32 selected, ring of 12, write head at \d+, wrapped \d+ times?/,
  );
  const place = page.locator(".own .head");
  const [words, head] = [await ownWords(page).textContent(), await place.getAttribute("style")];
  const turns = Number(/wrapped (\d+)/.exec(words ?? "")?.[1]);
  await expect(place).not.toHaveAttribute("style", head ?? "");
  await expect(page.getByText(/The next token overwrites token \d+/)).toBeVisible();
  await expect(page.locator(".dial text").first()).not.toHaveText(String(turns));
  const later = await ownWords(page).textContent();
  expect(Number(/wrapped (\d+)/.exec(later ?? "")?.[1])).toBeGreaterThan(turns);
  await expect(page.getByRole("img", { name: /Memory against tokens seen.*A full cache would hold/ })).toBeVisible();
  await page.keyboard.press("Escape");
  await finished(page);
});

test("the page counts wraps by its formula as the server does", async ({ page }) => {
  await open(page);
  await set(page, { ...LONG, "Max tokens": "30" });
  await paste(page, document(500));
  await message(page).press("Enter");
  await finished(page);
  const said = await page.locator(".answer footer small").textContent();
  const wraps = Number(/ring wrapped (\d+) time/.exec(said ?? "")?.[1]);
  expect(wraps).toBeGreaterThanOrEqual(2);
  const shown = Number(await page.locator(".dial text").first().textContent());
  expect([wraps, wraps - 1]).toContain(shown); // the last tokens may be in no tick
});

test("the prompt is shaded by what was kept, by layer and head too", async ({ page }) => {
  await open(page);
  await set(page, { Budget: "96", Temperature: "0", "Max tokens": "1500", "Other fields": '{"ignore_eos": true}' });
  await paste(page, document(600));
  await message(page).fill("Which item is beside the boxes?");
  await message(page).press("Enter");
  const text = page.getByRole("region", { name: "The prompt, shaded" });
  await expect(text).toContainText("Item 0 of the list");
  await expect(text).toContainText("Which item is beside the boxes?");
  expect(await text.locator(".k0").count()).toBeGreaterThan(0);
  await expect(text.locator(".role-sink.k5").first()).toBeVisible();
  expect(await text.locator(".role-ring").count()).toBeGreaterThan(0);
  await expect(page.getByText(/Each head keeps 96 of \d+ prompt tokens/)).toBeVisible();
  const all = await text.innerHTML();
  await page.getByRole("combobox", { name: "layer" }).selectOption("3");
  await page.getByRole("combobox", { name: "head" }).selectOption("1");
  await expect(page.getByText(/This head keeps 96 of \d+ prompt tokens\./)).toBeVisible();
  expect(await text.innerHTML()).not.toBe(all);
  await page.keyboard.press("Escape");
  await finished(page);
});

test("an answer of one token, which no tick shows, has its picture too", async ({ page }) => {
  await open(page);
  await set(page, { ...LONG, "Max tokens": "1" });
  await paste(page, document(500));
  await message(page).press("Enter");
  await finished(page);
  await expect(ownWords(page)).toContainText(/^4 sinks, 32 selected, ring of 12, .*wrapped 0 times/);
  await expect(ownWords(page)).toContainText(/\d+ tokens seen when prefill ended, 48 in the slot, \d+ evicted/);
  await expect(page.locator(".own .head")).toHaveCount(1);
});

test("a picture is there again after a reload, and leaves with its conversation", async ({ page }) => {
  await open(page);
  await set(page, { ...LONG, "Max tokens": "30" });
  await paste(page, document(500));
  await message(page).press("Enter");
  await finished(page);
  const text = page.getByRole("region", { name: "The prompt, shaded" });
  await expect(text).toContainText("Item 0 of the list");

  await set(page, { Budget: "2" }); // is refused, and takes nothing away
  await message(page).fill("And now?");
  await message(page).press("Enter");
  await expect(page.getByRole("alert")).toContainText("The server refused.");
  await expect(ownWords(page)).toContainText(/^4 sinks, 32 selected, ring of 12/);
  await expect(page.getByRole("article", { name: "You" })).toHaveCount(1);
  const [words, shaded] = [await ownWords(page).textContent(), await text.innerHTML()];

  await page.reload();
  await expect(ownWords(page)).toHaveText(words ?? "");
  await expect(text).toContainText("Item 0 of the list");
  expect(await text.innerHTML()).toBe(shaded);
  const list = page.getByRole("complementary", { name: "Conversations" });
  await list.getByRole("listitem").hover();
  await list.getByRole("button", { name: /^Delete / }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByText("Send a message to see what its slot keeps.")).toBeVisible();
  expect(await page.evaluate(() => Object.keys(localStorage).filter((key) => key.includes("picture")))).toEqual([]);
  await expect(message(page)).toBeFocused();
});

test("of a policy that selects nothing, no passages are listed", async ({ page }) => {
  await open(page);
  await set(page, { ...LONG, "Max tokens": "4", "Other fields": "" });
  await page.getByLabel("Cache policy").selectOption("streaming");
  await paste(page, document(500));
  await message(page).press("Enter");
  await finished(page);
  await expect(page.getByText(/The first and the newest tokens stay: 48 of \d+ prompt tokens\./)).toBeVisible();
  await expect(page.getByText(/Passages kept most/)).toHaveCount(0);
});

test("a prompt that fits is kept whole, and a request for a full cache has no ring", async ({ page }) => {
  await open(page);
  await set(page, { "Max tokens": "60", "Other fields": '{"ignore_eos": true}' });
  await page.getByLabel("Cache policy").selectOption("full");
  await message(page).fill("Hi");
  await message(page).press("Enter");
  await finished(page);
  await expect(ownWords(page)).toContainText("nothing is overwritten");
  await expect(page.getByText(/fits, so all of it is kept/)).toBeVisible();
  await expect(page.locator(".dial")).toHaveCount(0);
});
