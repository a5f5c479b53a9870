import { expect, test } from "@playwright/test";
import { document, faults, finished, fits, message, open, ownWords, paste, set } from "./page.ts";

for (const colorScheme of ["light", "dark"] as const) {
  test.describe(`in ${colorScheme} colours`, () => {
    test.use({ colorScheme });

    test("axe finds nothing serious in the chat", async ({ page }) => {
      await open(page);
      expect(await faults(page)).toEqual([]);
      await set(page, { Budget: "96", "Max tokens": "60", "Other fields": '{"ignore_eos": true}' });
      await paste(page, document(500));
      await expect(page.getByText(/^\d+ tokens$/)).toBeVisible();
      await message(page).fill("What is in the cellar?");
      expect(await faults(page)).toEqual([]);
      await message(page).press("Enter");
      await expect(ownWords(page)).toBeVisible();
      await finished(page);
      await expect(page.getByRole("region", { name: "The prompt, shaded" })).toBeVisible();
      expect(await faults(page)).toEqual([]);
      await page.getByRole("button", { name: "Settings" }).click();
      expect(await faults(page)).toEqual([]);
    });

    test("axe finds nothing serious in the dashboard", async ({ page }) => {
      await open(page, "/dashboard");
      await expect(page.getByText("Tokens per second")).toBeVisible();
      await page.getByText("The newest intervals as a table").click();
      expect(await faults(page)).toEqual([]);
    });
  });
}

test("the switch of colours goes against the system's", async ({ page }) => {
  await page.emulateMedia({ colorScheme: "light" });
  await open(page);
  const ground = () => page.evaluate(() => getComputedStyle(window.document.body).backgroundColor);
  const light = await ground();
  await page.getByRole("button", { name: "Colours: as the system" }).click();
  await page.getByRole("button", { name: "Colours: light" }).click();
  expect(await ground()).not.toBe(light);
  await page.reload();
  await expect(page.getByRole("button", { name: "Colours: dark" })).toBeVisible();
  expect(await ground()).not.toBe(light);
});

test.describe("on a phone", () => {
  test.use({ viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });

  test("the picture is a tab under the chat, and nothing is wider than the screen", async ({ page }) => {
    await page.goto("/"); // the model's name is not shown
    const memory = page.getByRole("complementary", { name: "Memory" });
    await expect(message(page)).toBeVisible();
    await expect(memory).toBeHidden();
    expect(await fits(page)).toBe(true);
    await page.getByRole("button", { name: "Memory" }).click();
    await expect(memory).toBeVisible();
    await expect(message(page)).toBeHidden();
    expect(await fits(page)).toBe(true);
    await page.getByRole("button", { name: "Conversations" }).click();
    await expect(page.getByRole("button", { name: "New chat" })).toBeVisible();
    await page.goto("/dashboard");
    await expect(page.getByText("Slots now")).toBeVisible();
    expect(await fits(page)).toBe(true);
    expect(await faults(page)).toEqual([]);
  });
  test("the list of all fields is no wider than the screen either", async ({ page }) => {
    await page.goto("/docs");
    await page.locator("details").evaluateAll((all) => all.map((one) => one.setAttribute("open", "")));
    await expect(page.getByText("kv_budget").first()).toBeVisible();
    expect(await fits(page)).toBe(true);
    expect(await faults(page)).toEqual([]);
  });
});
