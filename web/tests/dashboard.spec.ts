import { expect, test } from "@playwright/test";
import { finished, message, open, set, stop } from "./page.ts";

test("the dashboard fills while requests are answered", async ({ page, context }) => {
  const chat = await context.newPage();
  await open(chat);
  await set(chat, { "Max tokens": "2000", "Other fields": '{"ignore_eos": true}' });
  await message(chat).fill("Count to a hundred.");
  await message(chat).press("Enter");

  await open(page);
  await page.getByRole("link", { name: "Dashboard" }).click();
  await expect(page).toHaveURL(/\/dashboard$/);
  await expect(page.getByText(/^1 of 2$/)).toBeVisible();
  await expect(page.getByText(/Slot \d: another request, snapstream, \d+ tokens/)).toBeVisible();
  await expect(page.getByText(/^All well: 1 of 2 slots in use/)).toBeVisible();
  const throughput = page.getByRole("img", {
    name: /Tokens per second, mean of 15 s over the last \d+ minutes\. Newest: output [1-9.]/,
  });
  await expect(throughput).toBeVisible();
  const shown = () =>
    page.evaluate(() => {
      const tiles = [...document.querySelectorAll(".tiles div")];
      const tile = tiles.find((one) => one.textContent?.includes("output tokens/s, last 15 s"));
      const legend = document.querySelector(".plot .key b");
      return [tile?.querySelector("dd")?.textContent, legend?.textContent];
    });
  const [tile, legend] = await shown();
  expect(tile).toMatch(/^[\d.]+$/);
  expect(legend).toBe(tile);
  await expect(page.getByRole("img", { name: /Time to first token .* p50 [\d.]+ m?s/ })).toBeVisible();
  await expect(page.getByRole("img", { name: /Evicted tokens/ })).toBeVisible();
  await page.getByText("The newest intervals as a table").click();
  await expect(page.getByRole("table").getByRole("row").nth(1)).toBeVisible();
  await stop(chat).click();
  await finished(chat);
  await page.getByRole("link", { name: "Chat" }).click();
  await expect(message(page)).toBeVisible();
});

test("an invalid request is counted as one", async ({ page }) => {
  const tile = page.locator(".tiles div", { hasText: "invalid, last hour" }).locator("dd");
  await open(page, "/dashboard");
  const before = Number(await tile.textContent());
  const sent = await page.request.post("/v1/completions", { data: { model: "smollm2", prompt: "" } });
  expect(sent.status()).toBe(400);
  await expect(tile).toHaveText(String(before + 1), { timeout: 20_000 });
});

test("a server that does not answer is said to be lost", async ({ page }) => {
  await page.route("**/ringkv/live*", (route) => route.abort());
  await page.goto("/dashboard");
  await expect(page.getByRole("alert").first()).toContainText("The server does not answer");
});
