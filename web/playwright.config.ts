/** Browser tests: the system's Chromium against a real server with a real model, on a free port. */

import { defineConfig } from "@playwright/test";
import { browser, freePort, serverCommand } from "./tests/server.ts";

// Workers read this file too, and must find the port that the first reading chose.
const port = process.env.RINGKV_WEB_PORT ?? String(await freePort());
process.env.RINGKV_WEB_PORT = port;
const address = `http://127.0.0.1:${port}`;

export default defineConfig({
  testDir: "tests",
  outputDir: "test-results",
  fullyParallel: false,
  workers: 1, // the server has two slots and one model
  timeout: 180_000,
  expect: { timeout: 60_000 },
  reporter: [["list"]],
  use: { baseURL: address, viewport: { width: 1440, height: 900 }, launchOptions: browser() },
  webServer: {
    command: serverCommand({ model: "smollm2", budget: 256, port }),
    url: `${address}/ready`,
    timeout: 300_000,
    gracefulShutdown: { signal: "SIGTERM", timeout: 20_000 },
  },
});
