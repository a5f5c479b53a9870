/** What the tests run: a browser of the system, and ringkv's server. */

import { execFileSync } from "node:child_process";
import { createServer } from "node:net";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const BROWSERS = ["chromium", "chromium-browser", "google-chrome"];

/** Return how to start the browser of CHROMIUM, or the system's. */
export function browser() {
  return { executablePath: process.env.CHROMIUM ?? found(), args: ["--no-sandbox"] };
}

export interface Serve {
  model: string;
  budget: number;
  port: string;
}

/** A small server that starts quickly: no graphs are compiled. It writes to server.log. */
export function serverCommand({ model, budget, port }: Serve): string {
  const ringkv = process.env.RINGKV ?? `${ROOT}.venv/bin/ringkv`;
  const settings = `--model ${model} --slots 2 --kv-budget ${budget} --max-prompt 8192 --graphs off --port ${port}`;
  return `exec ${ringkv} serve ${settings} >server.log 2>&1`;
}

export function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const address = server.address();
      const port = typeof address === "object" && address ? address.port : 0;
      server.close(() => resolve(port));
    });
  });
}

function found(): string {
  for (const name of BROWSERS) {
    try {
      return execFileSync("which", [name], { encoding: "utf8" }).trim();
    } catch {
      // the next one
    }
  }
  throw new Error(`none of ${BROWSERS.join(", ")} is installed; install one or set CHROMIUM`);
}
