import { connection, hello, tick } from "../api/live";
import type { History, Point } from "../api/types";
import { Figure } from "../memory/MemoryPanel";
import { Slots } from "../memory/Slots";
import { bytes, count, rate, seconds } from "../text/format";
import { Charts } from "./Charts";
import { history, historyFault, useHistory } from "./history";
import { newest, smooth, smoothed, sum } from "./series";
import { Table } from "./Table";
import { verdict } from "./verdict";

const LATELY = 300;

export function Dashboard() {
  useHistory();
  const shown = history.value;
  return (
    <main class="dashboard" aria-label="Dashboard">
      <VerdictLine />
      {historyFault.value && (
        <p class="fault" role="alert">
          {historyFault.value}
        </p>
      )}
      {shown && (
        <>
          <Tiles history={shown} />
          <Charts history={shown} />
        </>
      )}
      <section class="card">
        <h2>Slots now</h2>
        <Slots />
        <Held />
      </section>
      {shown && <Table history={shown} />}
    </main>
  );
}

function VerdictLine() {
  const now = tick.value;
  const known = hello.value;
  if (!now || !known) return <p class="verdict is-unknown">Waiting for the server.</p>;
  const { tone, words } = verdict(history.value?.points ?? [], {
    connected: connection.value !== "lost",
    alive: now.alive,
    running: now.running,
    waiting: now.waiting,
    slots: known.limits.slots,
    interval: history.value?.interval ?? 5,
  });
  return (
    <p class={`verdict is-${tone}`} aria-live="polite">
      {words}
    </p>
  );
}

function Tiles({ history }: { history: History }) {
  const { points } = history;
  const now = tick.value;
  const lasting = `last ${smoothed(history)} s`;
  return (
    <dl class="figures tiles">
      <Figure name={`output tokens/s, ${lasting}`} value={rate(smooth(history, "output_tokens").at(-1) ?? 0)} />
      <Figure name={`prefill tokens/s, ${lasting}`} value={rate(smooth(history, "prompt_tokens").at(-1) ?? 0)} />
      <Figure name="time to first token, p95" value={seconds(newest(lately(points), (one) => one.ttft.p95))} />
      <Figure name="time per output token, p95" value={seconds(newest(lately(points), (one) => one.tpot.p95))} />
      <Figure name="slots in use" value={`${count(now?.running ?? 0)} of ${count(hello.value?.limits.slots ?? 0)}`} />
      <Figure name="queue" value={count(now?.waiting ?? 0)} />
      <Figure name="requests, last hour" value={count(sum(points, "requests"))} />
      <Figure
        name="rejected, last hour"
        title="Refused because of load: statuses 429 and 503"
        value={count(sum(points, "rejected"))}
      />
      <Figure
        name="invalid, last hour"
        title="Refused because of what they are: other statuses 4xx"
        value={count(sum(points, "invalid"))}
      />
      <Figure name="failed, last hour" title="Statuses 5xx" value={count(sum(points, "errors"))} />
    </dl>
  );
}

/** The points of the last five minutes: an older latency says nothing of now. */
function lately(points: readonly Point[]): readonly Point[] {
  const from = (points.at(-1)?.t ?? 0) - LATELY;
  return points.filter((one) => one.t >= from);
}

function Held() {
  const limits = hello.value?.limits;
  if (!limits) return null;
  return (
    <p class="note">
      {bytes(limits.held_bytes)} reserved: {count(limits.slots)} slots of {bytes(limits.slot_bytes)} in{" "}
      {limits.kv_format} format, {bytes(limits.staging_bytes)} staging, {bytes(limits.store_bytes)} prefix store. It
      does not grow.
    </p>
  );
}
