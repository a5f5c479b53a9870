import { useEffect, useRef } from "preact/hooks";
import uPlot, { type AlignedData, type Options } from "uplot";
import "uplot/dist/uPlot.min.css";
import { colour, colours } from "../theme";
import { useWidth } from "../ui/useWidth";

interface Props {
  /** What the plot says, for those who do not see it. */
  label: string;
  data: AlignedData;
  /** Called again when the colours change. */
  options: () => Omit<Options, "width" | "height">;
  height: number;
}

/** A plot of uPlot with the page's colours, as wide as its place. */
export function Plot({ label, data, options, height }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const plot = useRef<uPlot | null>(null);
  const shade = colours.value;
  useEffect(() => {
    if (!box.current) return;
    const made = new uPlot({ ...dressed(options()), width, height }, data, box.current);
    plot.current = made;
    return () => made.destroy();
  }, [shade, height]);
  useEffect(() => plot.current?.setSize({ width, height }), [width, height]);
  useEffect(() => plot.current?.setData(data), [data]);
  return <div class="plot-box" ref={box} role="img" aria-label={label} />;
}

const X_SIZE = 28;
const FONT = '11px system-ui, -apple-system, "Segoe UI", sans-serif';

/** Add the page's fonts and lines to a plot's axes. */
function dressed(options: Omit<Options, "width" | "height">): Omit<Options, "width" | "height"> {
  const ink = colour("muted");
  const line = { stroke: colour("line"), width: 1 };
  return {
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 18, 0, 0],
    ...options,
    axes: (options.axes ?? []).map((axis, i) => ({
      ...(i === 0 && { size: X_SIZE }),
      stroke: ink,
      font: FONT,
      grid: line,
      ticks: { ...line, size: 4 },
      gap: 4,
      ...axis,
    })),
  };
}
