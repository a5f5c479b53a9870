/** Draws docs/web-chat.png, docs/web-compare.png and docs/web-dashboard.png. */

import { execFileSync } from "node:child_process";
import { statSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { type APIRequestContext, expect, type Page, test } from "@playwright/test";
import { document, message, open, set } from "../tests/page.ts";

const DOCS = fileURLToPath(new URL("../../docs/", import.meta.url));
const LARGEST = 150_000;
const ONE_PALETTE = [
  "import sys",
  "from PIL import Image",
  "Image.open(sys.argv[1]).convert('RGB').quantize(256).save(sys.argv[1], optimize=True)",
].join("\n");

/** Write a picture, with a palette of 256 colours if Python's Pillow is there to make one. */
async function shoot(page: Page, name: string): Promise<void> {
  const path = `${DOCS}${name}`;
  await page.screenshot({ path, animations: "disabled" });
  try {
    execFileSync(process.env.PYTHON ?? "../.venv/bin/python", ["-c", ONE_PALETTE, path]);
  } catch {
    // larger, but as good
  }
  expect(statSync(path).size).toBeLessThan(LARGEST);
}

test.describe("the chat", () => {
  test.use({
    baseURL: `http://127.0.0.1:${process.env.RINGKV_CHAT_PORT}`,
    viewport: { width: 1560, height: 1260 },
    colorScheme: "light",
  });

  test("about a long document", async ({ page }) => {
    await open(page, "/", "qwen");
    await page.getByRole("button", { name: "Attach an example document" }).click();
    await expect(page.getByText(/^[\d,]+ tokens$/)).toBeVisible();
    await page.getByText("What am I looking at?").click();
    const question =
      "Where did the keeper hide the spare key? Then write a short Python function that counts a word in such a log.";
    await message(page).fill(question);
    await set(page, { "Max tokens": "400" });
    await message(page).press("Enter");
    await expect(page.locator(".dial text").first()).toHaveText("1", { timeout: 900_000 });
    await expect(page.getByRole("region", { name: "The prompt, shaded" })).toBeVisible();
    await expect(page.locator("pre code").first()).toContainText("return", { timeout: 900_000 });
    await shoot(page, "web-chat.png");
  });
});

test.describe("the comparison", () => {
  test.use({
    baseURL: `http://127.0.0.1:${process.env.RINGKV_CHAT_PORT}`,
    viewport: { width: 1360, height: 900 },
    colorScheme: "light",
  });

  test("of budgets for one question", async ({ page }) => {
    await open(page, "/", "qwen");
    await page.getByRole("button", { name: "Attach an example document" }).click();
    await expect(page.getByText(/^[\d,]+ tokens$/)).toBeVisible();
    await page.getByRole("button", { name: "Compare budgets" }).click();
    const comparison = page.getByRole("region", { name: "Comparison of budgets" });
    await expect(comparison.getByRole("listitem")).not.toHaveCount(0);
    await expect(comparison.locator("[aria-busy=true]")).toHaveCount(0, { timeout: 900_000 });
    await expect(comparison).toContainText("stairs");
    await shoot(page, "web-compare.png");
  });
});

const MINUTES = 4;
const BURSTS = [1, 1, 2, 3, 4, 5, 3, 2, 1, 1, 0, 3];
const SOON = 7000; // until an interval of the history has ended
const EVERY = 5000;

test.describe("the dashboard", () => {
  test.use({
    baseURL: `http://127.0.0.1:${process.env.RINGKV_DASHBOARD_PORT}`,
    viewport: { width: 1360, height: 960 },
    colorScheme: "light",
  });

  test("after some minutes of requests", async ({ page, request }) => {
    await open(page, "/dashboard");
    const asked: Promise<void>[] = [];
    for (let i = 0; i < (MINUTES * 60_000) / EVERY; i++) {
      const burst = BURSTS[i % BURSTS.length] ?? 0;
      for (let k = 0; k < burst; k++) asked.push(ask(request, 120 + 140 * ((3 * i + k) % 7)));
      await page.waitForTimeout(EVERY);
    }
    asked.push(ask(request, 300, 800), ask(request, 500, 800));
    await page.waitForTimeout(SOON);
    await shoot(page, "web-dashboard.png");
    await Promise.all(asked);
  });
});

async function ask(request: APIRequestContext, tokens: number, output = 64): Promise<void> {
  const content = `${document(tokens)}\nWhich item is the last one?`;
  const data = {
    messages: [{ role: "user", content }],
    max_tokens: output,
    ignore_eos: true,
    cache_salt: String(Math.random()),
  };
  // A connection that is used again may be one that the server is just closing because it was idle.
  await request.post("/v1/chat/completions", { data, headers: { connection: "close" }, timeout: 300_000 });
}
