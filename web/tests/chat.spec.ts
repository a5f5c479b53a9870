import { expect, test } from "@playwright/test";
import { answer, document, finished, message, open, paste, send, set, stop } from "./page.ts";

test("a question is sent with the keyboard alone, and its answer streams", async ({ page }) => {
  await open(page);
  await page.keyboard.press("Control+k");
  await set(page, { Temperature: "0", "Max tokens": "12" });
  await message(page).focus();
  await page.keyboard.type("Name three colours.");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("Be brief.");
  await expect(message(page)).toHaveValue("Name three colours.\nBe brief.");
  await page.keyboard.press("Enter");
  await expect(stop(page)).toBeVisible();
  await expect(answer(page).locator(".prose")).not.toBeEmpty();
  await finished(page);
  await expect(answer(page).getByText(/tokens · .* tokens\/s · first after/)).toBeVisible();
  await expect(page.getByText("The answer is complete").last()).toBeAttached();
});

test("Escape stops an answer, and it can be asked again and edited", async ({ page }) => {
  await open(page);
  await set(page, { Temperature: "0", "Max tokens": "300", "Other fields": '{"ignore_eos": true}' });
  await message(page).fill("Tell a long story.");
  await send(page).click();
  await expect(answer(page).locator(".prose")).not.toBeEmpty();
  await page.keyboard.press("Escape");
  await expect(answer(page).getByText(/^stopped · about \d+ tokens? · /)).toBeVisible();
  const before = await answer(page).locator(".prose").textContent();

  await set(page, { "Max tokens": "8", "Other fields": "" });
  await page.getByRole("button", { name: "Answer again" }).click();
  await finished(page);
  const again = await answer(page).locator(".prose").textContent();
  const same = Math.min(before?.length ?? 0, again?.length ?? 0);
  expect(again?.slice(0, same)).toBe(before?.slice(0, same)); // greedy

  await page.getByRole("button", { name: "Edit question" }).click();
  await expect(message(page)).toHaveValue("Tell a long story.");
  await message(page).fill("Say hello.");
  await message(page).press("Enter");
  await expect(page.getByRole("article", { name: "You" })).toHaveCount(1);
  await expect(page.getByRole("article", { name: "You" })).toHaveText("Say hello.");
  await finished(page);
});

test("an error of the server is shown in its words", async ({ page }) => {
  await open(page);
  await set(page, { Budget: "2" });
  await message(page).fill("Hello");
  await send(page).click();
  await expect(page.getByRole("alert")).toContainText(/The server refused\. budget 2 .*raise it to \d+.*status 400/s);
  await expect(message(page)).toHaveValue("Hello"); // to be sent again
  await expect(page.getByRole("article")).toHaveCount(0);
  await set(page, { Budget: "", "Max tokens": "4" });
  await send(page).click();
  await finished(page);
  await expect(page.getByRole("alert")).toHaveCount(0);
});

test("a policy that the server does not offer is refused in its words, and explained", async ({ page }) => {
  await open(page);
  await expect(page.getByText(/Not of this server.* arkvale keeps every token/)).toBeVisible();
  await set(page, { "Other fields": '{"kv_policy": "arkvale"}' });
  await message(page).fill("Hello");
  await send(page).click();
  await expect(page.getByRole("alert")).toContainText(/The server refused\. .*arkvale.*pages/s);
});

test("the example's question is answered from a small budget", async ({ page }) => {
  await open(page);
  await set(page, { "Other fields": '{"max_tokens": 16}' });
  await page.getByRole("button", { name: "Attach an example document" }).click();
  await expect(page.getByText(/^[\d,]+ tokens$/)).toBeVisible();
  await expect(page.getByRole("form").getByText(/^SmolLM2-135M-Instruct rarely finds such a fact/)).toBeVisible();
  await message(page).press("Enter");
  await finished(page);
  await expect(page.getByRole("article", { name: "You" })).toContainText("try that model.");
  await expect(answer(page)).toContainText(/prefill kept 256 of 1,[\d]+ prompt tokens/);
});

test("the example says that it sets the budget, and gives it back", async ({ page }) => {
  await page.route("**/ringkv/live*", async (route) => {
    const hello = {
      model: "smollm2",
      models: ["smollm2"],
      version: "0",
      limits: { slots: 2, capacity: 2048, longest_full: 8192, prompt_tokens: 8192, context: 8192, page: 0 },
      default_kv: { policy: "snapstream", budget: 2048 },
      policies: ["snapstream"],
      layers: 30,
      heads: 3,
      caution: "",
    };
    await route.fulfill({
      contentType: "text/event-stream",
      body: `event: hello\ndata: ${JSON.stringify(hello)}\n\n`,
    });
  });
  const note = page.getByText("The example uses a budget of 512 tokens.");
  await open(page);
  await set(page, { Budget: "1000" });
  await page.getByRole("button", { name: "Attach an example document" }).click();
  await expect(note).toBeVisible();
  await expect(page.getByLabel("budget")).toHaveValue("512");
  await expect(page.getByLabel("budget")).toHaveAccessibleDescription(/a budget of 512 tokens/);
  await expect(page.getByText(/rarely finds/)).toHaveCount(0);
  await page.getByRole("button", { name: "Remove Keeper’s log" }).click();
  await expect(note).toHaveCount(0);
  await expect(page.getByLabel("budget")).toHaveValue("1000");
});

test("a long document is a chip with its number of tokens, and one that is too long says so", async ({ page }) => {
  await open(page);
  const [counted] = await Promise.all([
    page.waitForResponse((response) => response.url().endsWith("/tokenize")),
    paste(page, document(3000)),
  ]);
  const { count } = (await counted.json()) as { count: number };
  expect(count).toBeGreaterThan(2000);
  await expect(page.getByText(`${count.toLocaleString("en")} tokens`)).toBeVisible();
  await expect(message(page)).toHaveValue("");
  await paste(page, document(9000));
  await expect(page.getByRole("alert")).toContainText(/The prompt has [\d,]+ tokens and this server takes 8,19\d\./);
  await expect(send(page)).toBeDisabled();
  await page.getByRole("button", { name: "Remove Pasted text 2" }).click();
  await expect(send(page)).toBeEnabled();
});

test("a file that is dropped becomes a document", async ({ page }) => {
  await open(page);
  await page.getByRole("form", { name: "Message" }).evaluate((form) => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File(["The sea is calm. ".repeat(20)], "sea.txt", { type: "text/plain" }));
    form.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
  });
  await expect(page.getByText("sea.txt")).toBeVisible();
  await expect(page.getByText(/\d+ tokens$/).first()).toBeVisible();
});

test("conversations are kept over a reload, renamed, exported and deleted", async ({ page }) => {
  await open(page);
  for (const text of ["First question", "Second question"]) {
    await page.keyboard.press("Control+k");
    await set(page, { "Max tokens": "4" });
    await message(page).fill(text);
    await message(page).press("Enter");
    await finished(page);
  }
  await page.reload();
  const list = page.getByRole("complementary", { name: "Conversations" });
  await expect(list.getByRole("listitem")).toHaveCount(2);
  await list.getByRole("button", { name: "First question", exact: true }).click();
  await expect(page.getByRole("article", { name: "You" })).toHaveText("First question");

  await list.getByRole("button", { name: "Rename First question" }).click();
  await page.getByRole("dialog").getByLabel("Title").fill("Mine");
  await page.keyboard.press("Enter");
  await expect(list.getByRole("button", { name: "Mine", exact: true })).toBeVisible();

  // The dialog has ended the hovering that shows an entry's buttons, and only a movement begins it again.
  await page.mouse.move(0, 0);
  await list.getByRole("button", { name: "Mine", exact: true }).hover();
  const [file] = await Promise.all([
    page.waitForEvent("download"),
    list.getByRole("button", { name: "Export Mine" }).click(),
  ]);
  expect(file.suggestedFilename()).toBe("Mine.json");

  await list.getByRole("button", { name: "Delete Mine" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(list.getByRole("listitem")).toHaveCount(1);
  await expect(page.getByRole("article", { name: "You" })).toHaveText("Second question");
});

test("a new chat has the server's settings, and a chat says that it has others", async ({ page }) => {
  await open(page);
  await expect(message(page)).toBeFocused();
  await set(page, { Budget: "64", Temperature: "0.5", "Max tokens": "2" });
  await expect(page.getByRole("button", { name: "Settings" })).toHaveText("2 set");
  await message(page).fill("Hello");
  await message(page).press("Enter");
  await finished(page);
  await page.keyboard.press("Control+k");
  await expect(page.getByLabel("budget")).toHaveValue("");
  await expect(page.getByRole("button", { name: "Settings" })).toHaveText("");
});

test("an answer cannot put HTML or scripts into the page", async ({ page }) => {
  const text =
    '<img src=x onerror="document.title=1"> [link](javascript:alert(1)) **bold** <b>raw</b>\n\n```js\nlet a = 1 < 2;\n```';
  const chunk = JSON.stringify({ id: "chatcmpl-1", choices: [{ delta: { content: text }, finish_reason: "stop" }] });
  await page.route("**/v1/chat/completions", (route) =>
    route.fulfill({ contentType: "text/event-stream", body: `data: ${chunk}\n\ndata: [DONE]\n\n` }),
  );
  await open(page);
  await message(page).fill("x");
  await message(page).press("Enter");
  await finished(page);
  const prose = answer(page).locator(".prose");
  await expect(prose.locator("strong")).toHaveText("bold");
  await expect(prose.locator("img, a, b, script")).toHaveCount(0);
  await expect(prose).toContainText("<b>raw</b>");
  await expect(prose.locator("pre")).toHaveText("let a = 1 < 2;");
});

test("a server with keys is asked with one, which stays in the tab", async ({ page }) => {
  await page.route(/\/(ringkv|v1|tokenize)/, async (route) => {
    const sent = route.request().headers().authorization;
    if (sent === "Bearer secret") return route.continue();
    return route.fulfill({ status: 401, json: { error: { message: "no API key" } } });
  });
  await page.goto("/");
  const dialog = page.getByRole("dialog", { name: "API key" });
  await dialog.getByLabel("Key").fill("wrong");
  await page.keyboard.press("Enter");
  await expect(dialog.getByText("does not know this key")).toBeVisible();
  await dialog.getByLabel("Key").fill("secret");
  await page.keyboard.press("Enter");
  await expect(page.getByText("smollm2").first()).toBeVisible();
  expect(await page.evaluate(() => JSON.stringify(localStorage))).not.toContain("secret");
  await page.getByRole("button", { name: "Settings" }).click();
  await expect(page.getByRole("dialog").getByRole("button", { name: "Save" })).toBeVisible();
  await expect(page.getByRole("link", { name: "All fields" })).toHaveCount(0); // a link cannot send the key
});

test("the settings lead to all fields of a request", async ({ page }) => {
  await open(page);
  await page.getByRole("button", { name: "Settings" }).click();
  const [docs] = await Promise.all([
    page.waitForEvent("popup"),
    page.getByRole("link", { name: "All fields" }).click(),
  ]);
  await expect(docs.getByRole("heading").first()).toBeVisible();
  await expect(docs.getByText("kv_budget").first()).toBeAttached(); // folded below its request
});
