import type { AlignedData, Options } from "uplot";
import { Plot } from "../plots/Plot";
import { bytes, count } from "../text/format";
import { colour } from "../theme";
import type { Sample } from "./trace";

const HEIGHT = 118;

/** Memory that a request holds, flat, under what a full cache would hold, rising. */
export function HeldChart({ samples }: { samples: readonly Sample[] }) {
  const last = samples.at(-1);
  if (!last) return null;
  const data: AlignedData = [
    samples.map((one) => one.seen),
    samples.map((one) => one.full),
    samples.map((one) => one.held),
  ];
  const share = last.full / Math.max(1, last.held);
  const words =
    share >= 1
      ? `held: ${bytes(last.held)}. A full cache would hold ${bytes(last.full)}, ${share.toFixed(1)} times as much.`
      : `held: ${bytes(last.held)}, the size of every slot. A full cache would hold ${bytes(last.full)} so far.`;
  return (
    <figure class="plot">
      <figcaption>
        <span class="key key-full">full cache</span>
        <span class="key key-held">this slot</span>
        <span class="words">
          After {count(last.seen)} tokens, {words}
        </span>
      </figcaption>
      <Plot
        label={`Memory against tokens seen. After ${count(last.seen)} tokens, ${words}`}
        data={data}
        options={options}
        height={HEIGHT}
      />
    </figure>
  );
}

function options(): Omit<Options, "width" | "height"> {
  return {
    scales: { x: { time: false }, y: { range: (_, __, max) => [0, max * 1.08] } },
    series: [
      {},
      { stroke: colour("muted"), width: 2, dash: [6, 4], fill: colour("plot-fill"), points: { show: false } },
      { stroke: colour("ring"), width: 3, points: { show: false } },
    ],
    axes: [
      { values: (_, ticks) => ticks.map((tick) => count(tick)), space: 60 },
      { values: (_, ticks) => ticks.map((tick) => bytes(tick)), size: 62 },
    ],
  };
}
