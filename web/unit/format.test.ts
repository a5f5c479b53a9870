import { describe, expect, it } from "vitest";
import { DEFAULTS, extraFields, requestFields } from "../src/chat/settings";
import { decoded } from "../src/text/entities";
import { bytes, many, seconds } from "../src/text/format";

describe("figures", () => {
  it.each([
    [0, "0 B"],
    [999, "999 B"],
    [11_796_480, "11.8 MB"],
    [1_330_000_000, "1.33 GB"],
    [164e6, "164 MB"],
  ])("%d bytes are %s", (n, text) => expect(bytes(n)).toBe(text));

  it.each([
    [null, "–"],
    [0.0238, "23.8 ms"],
    [1.907, "1.91 s"],
    [75, "75 s"],
  ])("%d seconds are %s", (s, text) => expect(seconds(s)).toBe(text));

  it("are singular for one", () => {
    expect([many(1, "entry"), many(2000, "entry"), many(1, "token")]).toEqual(["1 entry", "2,000 entries", "1 token"]);
  });
});

describe("settings", () => {
  it("leave empty fields to the server", () => {
    expect(requestFields(DEFAULTS)).toEqual({});
  });

  it("become numbers", () => {
    const fields = requestFields({
      ...DEFAULTS,
      policy: "streaming",
      budget: "1,024",
      temperature: "0",
      extra: '{"top_k": 5}',
    });
    expect(fields).toEqual({ kv_policy: "streaming", kv_budget: 1024, temperature: 0, top_k: 5 });
  });

  it("are refused in words if they are no numbers", () => {
    expect(() => requestFields({ ...DEFAULTS, seed: "x" })).toThrow("seed is “x”, which is not a number.");
  });

  it.each(["[1]", "3", "null", "{"])("refuse other fields that are not an object: %s", (text) => {
    expect(() => extraFields(text)).toThrow("JSON object");
  });
});

describe("character references", () => {
  it.each([
    ["a &lt;b&gt; &amp;amp; &#233;&#x20AC;", "a <b> &amp; é€"],
    ["&unknown; &#0; &#9999999;", "&unknown; &#0; &#9999999;"],
  ])("%s", (text, plain) => expect(decoded(text)).toBe(plain));
});
