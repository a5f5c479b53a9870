/**
 * Draws the pictures of README.md: a browser of fixed size against real servers.
 *
 * The chat is with a model that can answer. The dashboard's server has a fast one, and some minutes of requests.
 */

import { defineConfig } from "@playwright/test";
import tests from "./playwright.config.ts";
import { freePort, type Serve, serverCommand } from "./tests/server.ts";

async function port(name: string): Promise<string> {
  const chosen = process.env[name] ?? String(await freePort());
  process.env[name] = chosen;
  return chosen;
}

const SERVERS: Serve[] = [
  { model: "qwen2.5-coder-1.5b", budget: 512, port: await port("RINGKV_CHAT_PORT") },
  { model: "smollm2", budget: 512, port: await port("RINGKV_DASHBOARD_PORT") },
];

export default defineConfig({
  ...tests,
  testDir: "screenshots",
  timeout: 1_200_000,
  webServer: SERVERS.map((one) => ({
    command: serverCommand(one),
    url: `http://127.0.0.1:${one.port}/ready`,
    timeout: 600_000,
    gracefulShutdown: { signal: "SIGTERM" as const, timeout: 20_000 },
  })),
});
