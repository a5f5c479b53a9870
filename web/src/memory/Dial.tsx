import type { Shape } from "../cache/ring";
import { inRing, wraps, writeHead } from "../cache/ring";

const ARCS = 60;
const OUTER = 44;
const INNER = 30;

/** The ring as a ring: the hand is the write head, the newest tokens behind it are darkest. */
export function Dial({ slot }: { slot: Shape }) {
  const head = writeHead(slot);
  const filled = inRing(slot);
  const turns = wraps(slot);
  return (
    <svg class="dial" viewBox="-50 -50 100 100" aria-hidden="true">
      {Array.from({ length: ARCS }, (_, i) => {
        const place = ((i + 0.5) * slot.ring) / ARCS;
        const behind = (head - place + slot.ring) % slot.ring;
        const isFilled = filled === slot.ring || place < filled;
        return (
          <path key={i} d={ARC} class={isFilled ? "arc" : "arc is-free"} style={arcStyle(i, behind / slot.ring)} />
        );
      })}
      <g class="hand" style={{ transform: `rotate(${(360 * head) / slot.ring}deg)` }}>
        <path d={`M0 ${-INNER + 2}V${-OUTER - 2}`} />
        <path class="head-flag" d={`M-4 ${-INNER + 7}h8l-4-6z`} />
      </g>
      <text y="-1">{turns}</text>
      <text y="11" class="dial-unit">
        {turns === 1 ? "wrap" : "wraps"}
      </text>
    </svg>
  );
}

const ARC = arc(360 / ARCS - 1.2);

function arcStyle(i: number, age: number) {
  return { transform: `rotate(${(360 * i) / ARCS}deg)`, fillOpacity: String(1 - 0.78 * age) };
}

/** Return the path of a piece of a ring that begins at the top, of so many degrees. */
function arc(degrees: number): string {
  const at = (radius: number, angle: number) => {
    const radians = (angle * Math.PI) / 180;
    return `${(radius * Math.sin(radians)).toFixed(2)} ${(-radius * Math.cos(radians)).toFixed(2)}`;
  };
  return `M${at(OUTER, 0)}A${OUTER} ${OUTER} 0 0 1 ${at(OUTER, degrees)}L${at(INNER, degrees)}A${INNER} ${INNER} 0 0 0 ${at(INNER, 0)}z`;
}
