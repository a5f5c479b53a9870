/** The last hour, asked for every few seconds while the dashboard is shown. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { getJson } from "../api/client";
import { model } from "../api/live";
import type { History } from "../api/types";

const EVERY = 5000;

export const history = signal<History | null>(null);
export const historyFault = signal("");

export function useHistory(): void {
  const name = model.value;
  useEffect(() => {
    const abort = new AbortController();
    const load = async () => {
      try {
        const query = name ? `?model=${encodeURIComponent(name)}` : "";
        history.value = await getJson<History>(`/ringkv/history${query}`, abort.signal);
        historyFault.value = "";
      } catch (error) {
        if (!abort.signal.aborted) historyFault.value = error instanceof Error ? error.message : String(error);
      }
    };
    void load();
    const timer = setInterval(() => void load(), EVERY);
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, [name]);
}
