/** Draws docs/web-chat.png and docs/web-dashboard.png, of a real server that answers about a long document. */

import { execFileSync } from "node:child_process";
import { statSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, type Page, test } from "@playwright/test";
import { finished, message, open, set } from "../tests/page.ts";

const DOCS = fileURLToPath(new URL("../../docs/", import.meta.url));
const LARGEST = 150_000;

test.use({ viewport: { width: 1360, height: 1010 }, colorScheme: "light" });

/** Write a picture, with a palette of 256 colours if Python's Pillow is there to make one. */
async function shoot(page: Page, name: string): Promise<void> {
  const path = `${DOCS}${name}`;
  await page.screenshot({ path, animations: "disabled" });
  const small =
    "import sys; from PIL import Image; p = sys.argv[1]; Image.open(p).convert('RGB').quantize(256).save(p, optimize=True)";
  try {
    execFileSync(process.env.PYTHON ?? "../.venv/bin/python", ["-c", small, path]);
  } catch {
    // larger, but as good
  }
  expect(statSync(path).size).toBeLessThan(LARGEST);
}

test("the page", async ({ page }) => {
  await open(page);
  await page.getByRole("button", { name: "Attach an example document" }).click();
  await expect(page.getByText(/^[\d,]+ tokens$/)).toBeVisible();
  await page.getByText("What am I looking at?").click();
  await set(page, { "Max tokens": "400", "Other fields": '{"min_tokens": 160}' });
  await message(page).press("Enter");
  await expect(page.locator(".dial text").first()).toHaveText("1", { timeout: 500_000 });
  await expect(page.getByRole("region", { name: "The prompt, shaded" })).toBeVisible();
  await shoot(page, "web-chat.png");
  await page.keyboard.press("Escape");
  await finished(page);

  await page.getByRole("link", { name: "Dashboard" }).click();
  await expect(page.getByRole("img", { name: /Evicted tokens .* [1-9]/ })).toBeVisible();
  await shoot(page, "web-dashboard.png");
});
