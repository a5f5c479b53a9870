import { describe, expect, it } from "vitest";
import { budgets, held } from "../src/chat/budgets";

describe("budgets of a comparison", () => {
  it("are an eighth, a quarter and a half of the prompt, and all that a slot holds", () => {
    expect(budgets(2001, 4096, 4096)).toEqual([250, 500, 1000, 4096]);
  });
  it("are smaller shares if a slot holds less than a half", () => {
    expect(budgets(7000, 512, 512)).toEqual([109, 218, 437, 512]);
    expect(budgets(8192, 4096, 4096)).toEqual([512, 1024, 2048, 4096]);
  });
  it("end with the full cache if no slot holds the prompt", () => {
    expect(budgets(7000, 512, 8192)).toEqual([109, 218, 437, 512, 8192]);
    expect(budgets(500, 512, 8192)).toEqual([62, 125, 250, 512]);
    expect(budgets(8192, 4096, 8192)).toEqual([512, 1024, 2048, 4096]);
  });
  it("are fewer for a short prompt, of which nothing would be left", () => {
    expect(budgets(100, 4096, 4096)).toEqual([16, 25, 50, 4096]);
    expect(budgets(30, 4096, 4096)).toEqual([16, 4096]);
    expect(budgets(12, 4096, 4096)).toEqual([4096]);
  });
});

describe("what an answer holds", () => {
  const kv = { policy: "snapstream", kept: 60, ring_wraps: 0, bytes_held: 0 };
  it("is what was fed and not evicted, without the last token", () => {
    expect(held({ prompt_tokens: 100, completion_tokens: 11, kv: { ...kv, capacity: 90, evicted: 40 } })).toBe(70);
  });
  it("is never more than its budget", () => {
    expect(held({ prompt_tokens: 100, completion_tokens: 11, kv: { ...kv, capacity: 64, evicted: 40 } })).toBe(64);
  });
});
