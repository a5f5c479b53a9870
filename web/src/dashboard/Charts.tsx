import uPlot, { type AlignedData, type Options, type Series } from "uplot";
import type { History, Point } from "../api/types";
import { Plot } from "../plots/Plot";
import { count, rate, seconds } from "../text/format";
import { colour } from "../theme";
import { columns, isolated, newest, smooth, smoothed } from "./series";

const HEIGHT = 150;

interface Line {
  name: string;
  /** A colour of the style sheet. */
  ink: string;
  dash?: number[];
  value: (point: Point) => number | null;
}

interface Chart {
  title: string;
  show: (n: number) => string;
  lines: Line[];
  /** Whether values are counts of an interval, drawn as steps. */
  steps?: boolean;
}

const DASH = [5, 4];
const DOT = [2, 3];
const LONG_DASH = [10, 4];

const CHARTS: Chart[] = [
  {
    title: "Time to first token",
    show: seconds,
    lines: [
      { name: "p50", ink: "ring", value: (one) => one.ttft.p50 },
      { name: "p95", ink: "selected", dash: DASH, value: (one) => one.ttft.p95 },
      { name: "p99", ink: "sinks", dash: DOT, value: (one) => one.ttft.p99 ?? null },
    ],
  },
  {
    title: "Time per output token",
    show: seconds,
    lines: [
      { name: "p50", ink: "ring", value: (one) => one.tpot.p50 },
      { name: "p95", ink: "selected", dash: DASH, value: (one) => one.tpot.p95 },
      { name: "p99", ink: "sinks", dash: DOT, value: (one) => one.tpot.p99 ?? null },
    ],
  },
  {
    title: "Slots in use and queue",
    show: count,
    steps: true,
    lines: [
      { name: "in use", ink: "ring", value: (one) => one.running },
      { name: "waiting", ink: "sinks", dash: DASH, value: (one) => one.waiting },
    ],
  },
  {
    title: "Evicted tokens",
    show: count,
    steps: true,
    lines: [{ name: "in 5 s", ink: "selected", value: (one) => one.evicted }],
  },
  {
    title: "Rejected, invalid, failed, cancelled",
    show: count,
    steps: true,
    lines: [
      { name: "rejected", ink: "sinks", value: (one) => one.rejected },
      { name: "invalid", ink: "selected", dash: LONG_DASH, value: (one) => one.invalid },
      { name: "failed", ink: "bad", dash: DASH, value: (one) => one.errors },
      { name: "cancelled", ink: "muted", dash: DOT, value: (one) => one.cancelled },
    ],
  },
];

export function Charts({ history }: { history: History }) {
  return (
    <div class="charts">
      <Throughput history={history} />
      {CHARTS.map((chart) => (
        <ChartCard
          key={chart.title}
          chart={chart}
          data={columns(
            history,
            chart.lines.map((line) => line.value),
          )}
          now={chart.lines.map((line) => newest(history.points, line.value))}
        />
      ))}
    </div>
  );
}

const THROUGHPUT: Omit<Chart, "title"> = {
  show: rate,
  lines: [
    { name: "output", ink: "ring", value: () => null },
    { name: "prefill", ink: "selected", dash: DASH, value: () => null },
  ],
};

function Throughput({ history }: { history: History }) {
  const output = smooth(history, "output_tokens");
  const prompt = smooth(history, "prompt_tokens");
  const data = [history.points.map((one) => one.t - history.now), output, prompt] as AlignedData;
  const chart = { ...THROUGHPUT, title: `Tokens per second, mean of ${smoothed(history)} s` };
  return <ChartCard chart={chart} data={data} now={[output.at(-1) ?? null, prompt.at(-1) ?? null]} />;
}

function ChartCard({ chart, data, now }: { chart: Chart; data: AlignedData; now: (number | null)[] }) {
  const said = chart.lines.map((line, i) => {
    const value = now[i] ?? null;
    return { ...line, text: value === null ? "–" : chart.show(value) };
  });
  const span = spanOf(data[0]);
  const label = `${chart.title} over the last ${span / 60} minutes. Newest: ${said.map((one) => `${one.name} ${one.text}`).join(", ")}.`;
  return (
    <figure class="card plot">
      <figcaption>
        <h2>{chart.title}</h2>
        {said.map((one) => (
          <span key={one.name} class={`key key-${one.ink}${one.dash ? " is-dashed" : ""}`}>
            {one.name} <b>{one.text}</b>
          </span>
        ))}
      </figcaption>
      <Plot label={label} data={data} height={HEIGHT} key={span} options={() => options(chart, span)} />
    </figure>
  );
}

/** Distances of ticks of a count. */
const WHOLE = [1, 2, 5].flatMap((n) => [n, 10 * n, 100 * n, 1000 * n, 10000 * n, 100000 * n]).sort((a, b) => a - b);
/** Seconds that plots may show: a server that started lately has no hour behind it. */
const SPANS = [300, 600, 900, 1800, 3600];
const TICKS = 5;

/** Return the shortest span that holds all points. */
function spanOf(times: ArrayLike<number | null | undefined>): number {
  const oldest = -(times[0] ?? 0);
  return SPANS.find((span) => span >= oldest) ?? oldest;
}

function options(chart: Chart, span: number): Omit<Options, "width" | "height"> {
  return {
    scales: { x: { time: false, range: [-span, 0] }, y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] } },
    series: [{}, ...chart.lines.map((line) => series(line, chart.steps ?? false))],
    axes: [
      {
        splits: () => Array.from({ length: TICKS + 1 }, (_, i) => ((i - TICKS) * span) / TICKS),
        values: (_, ticks) => ticks.map(ago),
      },
      {
        size: 58,
        space: 34,
        values: (_, ticks) => ticks.map((tick) => (tick === 0 ? "0" : chart.show(tick))),
        ...(chart.steps && { incrs: WHOLE }),
      },
    ],
  };
}

function ago(t: number): string {
  return t === 0 ? "now" : `${Math.round(-t / 60)} min`;
}

const stepped = uPlot.paths.stepped?.({ align: 1 });

function series(line: Line, steps: boolean): Series {
  return {
    stroke: colour(line.ink),
    width: 1.75,
    points: { show: true, size: 5, fill: colour(line.ink), filter: (plot, i) => isolated(plot.data[i] ?? []) },
    ...(line.dash && { dash: line.dash }),
    ...(steps && stepped && { paths: stepped }),
  };
}
