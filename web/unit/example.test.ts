import { beforeAll, expect, it, vi } from "vitest";

beforeAll(() => vi.stubGlobal("localStorage", { getItem: () => null }));

it("the example has its fact, however short it is", async () => {
  const { exampleText } = await import("../src/chat/example");
  const whole = exampleText(8192);
  expect(whole).toMatch(/^2 January.*11 August/s);
  for (const tokens of [1500, 1000, 500, 100, 50]) {
    const text = exampleText(tokens);
    expect(text).toContain("third step of the cellar stairs");
    expect(text.length).toBeLessThan(4 * tokens);
    expect(whole).toContain(text);
  }
});

it("an example that cannot be attached leaves the settings as they were", async () => {
  vi.stubGlobal("sessionStorage", { getItem: () => null });
  vi.stubGlobal("document", { getElementById: () => null });
  vi.stubGlobal("fetch", () => Promise.reject(new Error("no server")));
  const { attachExample } = await import("../src/chat/example");
  const { current } = await import("../src/chat/conversations");
  const { attached, refused } = await import("../src/chat/documents");
  const attaching = attachExample();
  expect(current.value.settings.temperature).toBe("0");
  await attaching;
  expect(refused.value).toContain("cannot be attached");
  expect(attached.value).toEqual([]);
  expect(current.value.settings).toMatchObject({ temperature: "", budget: "" });
});
