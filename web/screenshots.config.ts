/** Draws the pictures of README.md: a browser at fixed size against a real server. */

import { defineConfig, type PlaywrightTestConfig } from "@playwright/test";
import tests from "./playwright.config.ts";
import { serverCommand } from "./tests/server.ts";

const BUDGET = 512;
const server = tests.webServer as Exclude<PlaywrightTestConfig["webServer"], undefined | unknown[]>;
const command = serverCommand(process.env.RINGKV_WEB_PORT ?? "", BUDGET);

export default defineConfig({
  ...tests,
  testDir: "screenshots",
  timeout: 600_000,
  webServer: { ...server, command },
});
