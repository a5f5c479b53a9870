/** Draws the pictures of README.md: a browser at fixed size against a real server. */

import { defineConfig } from "@playwright/test";
import tests from "./playwright.config.ts";

export default defineConfig({ ...tests, testDir: "screenshots", timeout: 600_000 });
