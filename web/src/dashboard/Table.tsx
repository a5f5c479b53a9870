import type { History, Point } from "../api/types";
import { count, seconds } from "../text/format";

const ROWS = 24;

const COLUMNS: [string, (point: Point, interval: number) => string][] = [
  ["output tokens/s", (one, interval) => count(one.output_tokens / interval)],
  ["prefill tokens/s", (one, interval) => count(one.prompt_tokens / interval)],
  ["requests", (one) => count(one.requests)],
  ["first token, p50", (one) => seconds(one.ttft.p50)],
  ["first token, p95", (one) => seconds(one.ttft.p95)],
  ["per token, p50", (one) => seconds(one.tpot.p50)],
  ["per token, p95", (one) => seconds(one.tpot.p95)],
  ["in use", (one) => count(one.running)],
  ["waiting", (one) => count(one.waiting)],
  ["evicted", (one) => count(one.evicted)],
  ["rejected", (one) => count(one.rejected)],
  ["invalid", (one) => count(one.invalid)],
  ["failed", (one) => count(one.errors)],
];

/** The newest points as a table, newest first. */
export function Table({ history }: { history: History }) {
  const rows = history.points.slice(-ROWS).reverse();
  return (
    <details class="card">
      <summary>The newest intervals as a table</summary>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a wide table is scrolled with the keyboard */}
      <section class="scroll-x" tabIndex={0} aria-label="Newest intervals">
        <table>
          <thead>
            <tr>
              <th scope="col">seconds ago</th>
              {COLUMNS.map(([name]) => (
                <th scope="col" key={name}>
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((point) => (
              <tr key={point.t}>
                <th scope="row">{count(history.now - point.t)}</th>
                {COLUMNS.map(([name, show]) => (
                  <td key={name}>{show(point, history.interval)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </details>
  );
}
