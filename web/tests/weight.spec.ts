import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { expect, test } from "@playwright/test";

const BUILT = fileURLToPath(new URL("../../src/ringkv/server/web/", import.meta.url));

test("scripts weigh less than 120 kB compressed", () => {
  const scripts = readdirSync(`${BUILT}assets`).filter((name) => name.endsWith(".js"));
  const sizes = scripts.map((name) => gzipSync(readFileSync(`${BUILT}assets/${name}`)).length);
  expect(sizes.reduce((sum, size) => sum + size, 0)).toBeLessThan(120_000);
});

test("the page is there within a second, and loads nothing from other places", async ({ page, baseURL }) => {
  const others: string[] = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(baseURL ?? "")) others.push(request.url());
  });
  await page.goto("/"); // the browser's own start
  await page.goto("/");
  await expect(page.getByRole("textbox", { name: "Message" })).toBeVisible();
  const ready = await page.evaluate(() => performance.getEntriesByName("shown")[0]?.startTime);
  expect(ready).toBeLessThan(1000);
  expect(others).toEqual([]);
});
