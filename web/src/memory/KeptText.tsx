import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Kept } from "../api/types";
import { isRing, keepsWholePrompt, overwrittenPrompt, type Shape } from "../cache/ring";
import { count, many, percent } from "../text/format";
import { LEVELS, type Passage, passages, type Run, runs } from "../text/pieces";
import { Overview } from "./Overview";
import { type Pick, pick, type Trace } from "./trace";

/** The prompt's text, shaded by how many (layer, head) pairs kept each token. */
export function KeptText({ trace, conversation }: { trace: Trace; conversation: string }) {
  const { kept, texts, slot, fault } = trace;
  const text = useRef<HTMLDivElement>(null);
  const found = useMemo(() => best(kept, texts, slot), [kept, texts, slot === null]);
  const first = kept ? inMiddle(found, kept.tokens)?.from : undefined;
  // What is worth seeing of a long prompt is seldom its beginning.
  useEffect(() => {
    if (first !== undefined) scrollTo(text.current, first);
  }, [first]);
  const said = fault && <p class="note">{fault}</p>;
  if (said && (!kept || texts.length === 0)) return said;
  if (!kept || texts.length === 0) return <p class="note">Shown after the first token of the answer.</p>;
  const show = (p: number) => scrollTo(text.current, p);
  return (
    <>
      <Pickers kept={kept} picked={trace.pick} onPick={(chosen) => pick(conversation, chosen)} />
      {said}
      <Summary kept={kept} slot={slot} />
      <Overview kept={kept} slot={slot} onPick={show} />
      <Legend />
      <Best found={found} onPick={show} />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: the text is scrolled with the keyboard */}
      <section class="kept-text" ref={text} tabIndex={0} aria-label="The prompt, shaded by what was kept">
        <Shaded texts={texts} kept={kept} slot={slot} gone={slot ? overwrittenPrompt(slot)[1] : 0} />
      </section>
    </>
  );
}

interface ShadedProps {
  texts: string[];
  kept: Kept;
  slot: Shape | null;
  /** Ring tokens of the prompt before this position have been overwritten. */
  gone: number;
}

/** The text's elements are made again only if they differ: ticks change `slot` four times a second. */
function Shaded({ texts, kept, slot, gone }: ShadedProps) {
  return useMemo(() => {
    const found = split(runs(texts, kept.counts, kept.of, slot), texts, gone);
    return (
      <>
        {found.map((run) => (
          <span key={run.from} data-from={run.from} class={classOf(run, gone)} title={titleOf(run, kept, gone)}>
            {run.text}
          </span>
        ))}
      </>
    );
  }, [texts, kept, slot === null, gone]);
}

/** Divide the run of the ring that is overwritten in part. */
function split(all: Run[], texts: readonly string[], gone: number): Run[] {
  return all.flatMap((run) => {
    if (run.role !== "ring" || gone <= run.from || gone >= run.to) return [run];
    const piece = (from: number, to: number): Run => ({ ...run, from, to, text: texts.slice(from, to).join("") });
    return [piece(run.from, gone), piece(gone, run.to)];
  });
}

function isGone(run: Run, gone: number): boolean {
  return run.role === "ring" && run.to <= gone && run.level > 0;
}

function classOf(run: Run, gone: number): string {
  const special = run.special ? " is-special" : "";
  return isGone(run, gone) ? `gone${special}` : `k${run.level} role-${run.role}${special}`;
}

const ROLE_WORDS = { sink: "sink", ring: "in the ring", prompt: "selected" };

function titleOf(run: Run, kept: Kept, gone: number): string {
  const mean = kept.counts.slice(run.from, run.to).reduce((sum, n) => sum + n, 0) / (run.to - run.from);
  const where =
    run.to - run.from === 1 ? `token ${count(run.from)}` : `tokens ${count(run.from)} to ${count(run.to - 1)}`;
  if (isGone(run, gone)) return `${where}: overwritten in the ring since`;
  return run.level === 0
    ? `${where}: evicted`
    : `${where}: ${ROLE_WORDS[run.role]}, kept by ${count(mean)} of ${count(kept.of)}`;
}

function Summary({ kept, slot }: { kept: Kept; slot: Shape | null }) {
  return <p class="words">{slot && keepsWholePrompt(slot) ? fitsWords(kept) : keptWords(kept)}</p>;
}

function fitsWords(kept: Kept): string {
  return `The prompt of ${many(kept.tokens, "token")} fits, so all of it is kept.`;
}

function keptWords({ counts, of, tokens, layout }: Kept): string {
  const mean = counts.reduce((sum, n) => sum + n, 0) / of;
  const share = `${count(mean)} of ${count(tokens)} prompt tokens`;
  if (layout.selected === 0) return `The first and the newest tokens stay: ${share}. Nothing is selected.`;
  if (of === 1) return `This head keeps ${share}.`;
  const nowhere = counts.filter((n) => n === 0).length / Math.max(1, tokens);
  return `Each head keeps ${share}, and selects its own: ${percent(nowhere)} were kept by none of ${count(of)} heads.`;
}

function Legend() {
  return (
    <p class="legend">
      <span>
        <i class="k0">evicted</i>
      </span>
      <span class="ramp">
        {Array.from({ length: LEVELS }, (_, i) => (
          <i key={i} class={`k${i + 1} role-prompt`} />
        ))}
        kept by few to all heads
      </span>
      <span>
        <i class="k5 role-sink">sink</i>
      </span>
      <span>
        <i class="k5 role-ring">in the ring</i>
      </span>
      <span>
        <i class="gone">overwritten since</i>
      </span>
    </p>
  );
}

interface PickersProps {
  kept: Kept;
  picked: Pick;
  onPick: (chosen: Partial<Pick>) => void;
}

function Pickers({ kept, picked, onPick }: PickersProps) {
  const set = (name: keyof Pick) => (value: number | null) => onPick({ [name]: value });
  return (
    <p class="pickers">
      <Picker name="layer" size={kept.layers} value={picked.layer} onValue={set("layer")} />
      <Picker name="head" size={kept.heads} value={picked.head} onValue={set("head")} />
    </p>
  );
}

interface PickerProps {
  name: string;
  size: number;
  value: number | null;
  onValue: (value: number | null) => void;
}

function Picker({ name, size, value, onValue }: PickerProps) {
  return (
    <label>
      {name}
      <select
        value={value ?? ""}
        onChange={({ currentTarget }) => onValue(currentTarget.value === "" ? null : Number(currentTarget.value))}
      >
        <option value="">all {size}</option>
        {Array.from({ length: size }, (_, i) => (
          <option key={i} value={i}>
            {i}
          </option>
        ))}
      </select>
    </label>
  );
}

const SHOWN = 3;
/** Parts of a prompt that are mostly kept anyway: what a chat begins with, and the newest tokens. */
const EDGE = 0.1;

/** The passages that were kept most, outside the sinks and the ring, which keep whatever comes. */
function Best({ found, onPick }: { found: Passage[]; onPick: (p: number) => void }) {
  if (found.length === 0) return null;
  return (
    <div class="best">
      <h4>Passages kept most, by the share of heads</h4>
      <ol>
        {found.map((one) => (
          <li key={one.from}>
            <button type="button" onClick={() => onPick(one.from)}>
              <span class="share">{percent(one.share)}</span>
              <span class="quote">{one.text.replace(/\s+/g, " ")}</span>
            </button>
          </li>
        ))}
      </ol>
    </div>
  );
}

function best(kept: Kept | null, texts: string[], slot: Shape | null): Passage[] {
  if (!kept || !slot || !isRing(slot) || keepsWholePrompt(slot)) return [];
  const until = Math.max(slot.sinks, slot.prompt - slot.ring);
  return passages(texts, kept.counts, kept.of, [slot.sinks, until], SHOWN).filter((one) => one.share > 0);
}

/** Return the best passage that is neither at the beginning nor at the end, if there is one. */
function inMiddle(found: Passage[], tokens: number): Passage | undefined {
  return found.find((one) => one.from > EDGE * tokens && one.to < (1 - EDGE) * tokens) ?? found[0];
}

function scrollTo(box: HTMLElement | null, p: number): void {
  if (!box) return;
  const all = [...box.querySelectorAll<HTMLElement>("[data-from]")];
  const found = all.findLast((one) => Number(one.dataset.from) <= p);
  if (found) box.scrollTop = found.offsetTop - box.offsetTop - box.clientHeight / 3;
}
