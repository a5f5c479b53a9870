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
