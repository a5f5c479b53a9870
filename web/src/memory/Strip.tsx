import { useId } from "preact/hooks";
import type { Part, PartKind, Shape } from "../cache/ring";
import { budget, inRing, nextEntry, parts, restKind, writeHead } from "../cache/ring";
import { inWords, partWords } from "../cache/words";
import { count } from "../text/format";
import { useWidth } from "../ui/useWidth";
import { Patterns } from "./Patterns";

interface Props {
  slot: Shape;
  /** The page's own request: larger, with labels. */
  own?: boolean;
}

const HEIGHT = { own: 40, other: 18 };
const HEAD_ROOM = 9;
const CHARACTER = 6.4;
const LABEL_EDGE = 24;

/** A slot as a strip of its entries: sinks, selected, the ring with its write head, free entries. */
export function Strip({ slot, own = false }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const id = useId();
  const height = own ? HEIGHT.own : HEIGHT.other;
  const place = placed(parts(slot), Math.max(slot.capacity, budget(slot)), width);
  return (
    <div class={`strip ${own ? "is-own" : ""}`} ref={box}>
      <svg width={width} height={height + HEAD_ROOM} role="img" aria-label={inWords(slot)}>
        <Patterns id={id} />
        {place.map(({ part, x, w }) => (
          <g key={part.kind} class={`part part-${part.kind}`}>
            <title>{partWords(part)}</title>
            {part.kind === "ring" ? (
              <Ring slot={slot} id={id} x={x} width={w} height={height} />
            ) : (
              <rect x={x} y={HEAD_ROOM} width={w} height={height} class="fill" />
            )}
            {PATTERNED.has(part.kind) && (
              <rect x={x} y={HEAD_ROOM} width={w} height={height} fill={`url(#${id}-${part.kind})`} />
            )}
          </g>
        ))}
        <Head slot={slot} place={place} height={height} />
      </svg>
      {own && <Labels place={place} width={width} />}
    </div>
  );
}

interface Placed {
  part: Part;
  x: number;
  w: number;
}

const PATTERNED = new Set<PartKind>(["sinks", "selected", "prompt", "unused"]);
const LEAST_WIDTH = 4;

/** Place parts on a strip of `width` pixels: in proportion, but none so thin that it cannot be seen. */
export function placed(all: readonly Part[], entries: number, width: number): Placed[] {
  const scale = width / Math.max(1, entries);
  const widths = all.map((part) => Math.max(LEAST_WIDTH, (part.to - part.from) * scale));
  const over = widths.reduce((sum, w) => sum + w, 0) - width;
  const widest = widths.indexOf(Math.max(...widths));
  let x = 0;
  return all.map((part, i) => {
    const w = Math.max(0, (widths[i] ?? 0) - (i === widest ? over : 0));
    x += w;
    return { part, x: x - w, w };
  });
}

/** The ring's tokens, newest darkest: the seam between newest and oldest is the write head. */
function Ring({ slot, id, x, width, height }: { slot: Shape; id: string; x: number; width: number; height: number }) {
  const filled = inRing(slot);
  const head = filled < slot.ring ? filled : writeHead(slot);
  const before = filled > 0 ? (width * head) / filled : 0;
  const oldest = filled > 0 ? (filled - head) / filled : 0;
  return (
    <>
      <defs>
        <Ages id={`${id}-old`} from={0} to={oldest} />
        <Ages id={`${id}-new`} from={oldest} to={1} />
      </defs>
      <rect x={x} y={HEAD_ROOM} width={before} height={height} fill={`url(#${id}-new)`} />
      <rect x={x + before} y={HEAD_ROOM} width={width - before} height={height} fill={`url(#${id}-old)`} />
    </>
  );
}

const OLDEST_OPACITY = 0.25;

function Ages({ id, from, to }: { id: string; from: number; to: number }) {
  const opacity = (age: number) => OLDEST_OPACITY + (1 - OLDEST_OPACITY) * age;
  return (
    <linearGradient id={id}>
      <stop offset="0" class="ring-stop" stop-opacity={opacity(from)} />
      <stop offset="1" class="ring-stop" stop-opacity={opacity(to)} />
    </linearGradient>
  );
}

/** The write head: where the next token goes. */
function Head({ slot, place, height }: { slot: Shape; place: Placed[]; height: number }) {
  const ring = place.find(({ part }) => part.kind === restKind(slot));
  if (!ring || slot.ring === 0) return null;
  const filled = inRing(slot);
  const share = filled < slot.ring ? 1 : (nextEntry(slot) - slot.protected) / slot.ring;
  return (
    <g class="head" style={{ transform: `translateX(${ring.x + ring.w * share}px)` }}>
      <path d={`M0 ${HEAD_ROOM}v${height}`} />
      <path class="head-flag" d={`M-5 0h10l-5 ${HEAD_ROOM}z`} />
    </g>
  );
}

const SHORT: Record<PartKind, string> = {
  sinks: "sinks",
  selected: "selected",
  prompt: "prompt",
  ring: "ring",
  reviewed: "in use",
  appended: "in use",
  free: "free",
  unused: "outside budget",
};

/** Labels at their parts, moved right if the one before needs the room, left out if there is none. */
function Labels({ place, width }: { place: Placed[]; width: number }) {
  let end = 0;
  const found = place.flatMap(({ part, x }) => {
    const text = `${count(part.to - part.from)} ${SHORT[part.kind]}`;
    const left = Math.max(x, end);
    const right = left + LABEL_EDGE + CHARACTER * text.length;
    if (right > width + LABEL_EDGE) return [];
    end = right;
    return [{ kind: part.kind, text, left }];
  });
  return (
    <div class="labels" aria-hidden="true">
      {found.map(({ kind, text, left }) => (
        <span key={kind} class={`label swatch swatch-${kind}`} style={{ left: `${left}px` }}>
          {text}
        </span>
      ))}
    </div>
  );
}
