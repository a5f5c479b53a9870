import { useEffect, useRef } from "preact/hooks";
import type { Kept } from "../api/types";
import type { Shape } from "../cache/ring";
import { count } from "../text/format";
import { overview, roleOf } from "../text/pieces";
import { colour, colours } from "../theme";
import { useWidth } from "../ui/useWidth";

const HEIGHT = 34;
const BAR = 3;

interface Props {
  kept: Kept;
  slot: Shape | null;
  onPick: (position: number) => void;
}

/** The whole prompt in one row: the higher a bar, the more heads kept that part. */
export function Overview({ kept, slot, onPick }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const shade = colours.value;
  useEffect(() => {
    if (canvas.current) draw(canvas.current, kept, slot, width);
  }, [kept, slot === null, width, shade]);
  const onClick = (event: MouseEvent) => {
    const x = event.offsetX / Math.max(1, width);
    onPick(Math.floor(x * kept.tokens));
  };
  return (
    <div class="overview" ref={box}>
      <canvas
        ref={canvas}
        height={HEIGHT}
        role="img"
        aria-label={`Where in the prompt of ${count(kept.tokens)} tokens something was kept`}
        onClick={onClick}
      />
      <p class="ends" aria-hidden="true">
        <span>token 0</span>
        <span>where in the prompt</span>
        <span>{count(kept.tokens - 1)}</span>
      </p>
    </div>
  );
}

const ROLE_COLOURS = { sink: "sinks", ring: "ring", prompt: "selected" } as const;

function draw(canvas: HTMLCanvasElement, kept: Kept, slot: Shape | null, width: number): void {
  const density = devicePixelRatio || 1;
  canvas.width = width * density;
  canvas.height = HEIGHT * density;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${HEIGHT}px`;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  pen.scale(density, density);
  const shares = overview(kept.counts, kept.of, Math.floor(width / BAR));
  const step = width / shares.length;
  const fills = {
    sink: colour(ROLE_COLOURS.sink),
    ring: colour(ROLE_COLOURS.ring),
    prompt: colour(ROLE_COLOURS.prompt),
  };
  shares.forEach((share, i) => {
    const position = Math.floor((i * kept.tokens) / shares.length);
    const tall = share > 0 ? Math.max(1.5, share * HEIGHT) : 0;
    pen.fillStyle = fills[roleOf(slot, position)];
    pen.fillRect(i * step, HEIGHT - tall, Math.max(1, step - 0.75), tall);
  });
}
