import { useEffect, useRef } from "preact/hooks";
import { hello } from "../api/live";
import { bytes, count, many, percent, seconds } from "../text/format";
import { IconButton } from "../ui/IconButton";
import { FINISHES, Said, Waiting } from "./Answer";
import { held } from "./budgets";
import { type Column, type Comparison as Compared, closeComparison, keep } from "./compare";
import type { Message } from "./conversations";
import { focusComposer } from "./editing";

/** The answers under several budgets, side by side. */
export function Comparison({ id, compared }: { id: string; compared: Compared }) {
  const section = useRef<HTMLElement>(null);
  useEffect(() => section.current?.scrollIntoView(), []);
  const close = () => {
    closeComparison(id);
    focusComposer();
  };
  return (
    <section class="comparison" ref={section} aria-label="Comparison of budgets">
      <header class="dialog-head">
        <h2>{compared.asked.text || "Compare budgets"}</h2>
        <IconButton icon="close" label="Close the comparison" onClick={close} />
      </header>
      <p class="note">
        {many(compared.tokens, "prompt token")}, {compared.policy}. The prompt is prefilled once, which takes most of
        the time. Each budget then keeps its share of it, and answers greedily.
      </p>
      <ol>
        {compared.columns.map((column) => (
          <BudgetColumn key={column.budget} id={id} compared={compared} column={column} />
        ))}
      </ol>
    </section>
  );
}

function BudgetColumn({ id, compared, column }: { id: string; compared: Compared; column: Column }) {
  const { budget, answer, ended } = column;
  const isWhole = budget >= compared.tokens;
  const title = isWhole ? `All ${many(compared.tokens, "token")}` : many(budget, "token");
  const keepThis = (kept: Message) => {
    keep(id, compared, kept);
    focusComposer();
  };
  return (
    <li aria-busy={!ended}>
      <h3>
        {title}
        <small>{isWhole ? "the whole prompt" : `${percent(budget / compared.tokens)} of the prompt`}</small>
      </h3>
      <Costs answer={answer} />
      {answer ? <Said message={answer} /> : <p class="waiting">Waits for its turn</p>}
      {answer && !answer.text && !ended && <Waiting conversation={id} />}
      {answer?.finish && FINISHES[answer.finish] && <small>{FINISHES[answer.finish]}</small>}
      {answer?.text && ended && (
        <button type="button" aria-label={`Keep this answer: ${title}`} onClick={() => keepThis(answer)}>
          Keep this answer
        </button>
      )}
    </li>
  );
}

/** What an answer's cache kept and cost, as far as it is known. */
function Costs({ answer }: { answer: Message | null }) {
  const usage = answer?.usage;
  const kv = usage?.kv;
  const entryBytes = hello.value?.limits.entry_bytes ?? 0;
  const rows = [
    ["kept", kv && count(kv.kept)],
    ["evicted by the end", kv && count(kv.evicted)],
    ["bytes of its entries", usage && bytes(held(usage) * entryBytes)],
    ["first token", answer?.timing && seconds(answer.timing.first)],
    ["cached", usage && count(usage.prompt_tokens_details?.cached_tokens ?? 0)],
  ];
  return (
    <dl>
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value ?? "–"}</dd>
        </div>
      ))}
    </dl>
  );
}
