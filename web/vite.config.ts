import { defineConfig } from "vitest/config";

const server = process.env.RINGKV_URL ?? "http://127.0.0.1:8000";

export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/ringkv/server/web",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
  },
  server: {
    // `npm run dev` shows changes at once; a running `ringkv serve` answers.
    proxy: Object.fromEntries(["/v1", "/ringkv", "/tokenize", "/detokenize"].map((path) => [path, server])),
  },
  test: { include: ["unit/**/*.test.ts"] },
});
