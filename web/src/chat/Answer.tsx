import { tick } from "../api/live";
import { times } from "../cache/words";
import { traces } from "../memory/trace";
import { bytes, count, many, rate, seconds } from "../text/format";
import { Markdown } from "../text/Markdown";
import { CopyButton } from "../ui/CopyButton";
import { IconButton } from "../ui/IconButton";
import { isComparing } from "./compare";
import type { Conversation, Message } from "./conversations";
import { retry, running } from "./exchange";

interface Props {
  message: Message;
  conversation: Conversation;
  isLast: boolean;
}

export function Answer({ message, conversation, isLast }: Props) {
  const isBusy = running.value.has(conversation.id);
  const isRunning = isLast && isBusy && !isComparing(conversation);
  return (
    <article class="message answer" aria-label="Answer" aria-busy={isRunning}>
      <Said message={message} />
      {isRunning && !message.text && <Waiting conversation={conversation.id} />}
      {!isRunning && (
        <footer>
          <span class="tools">
            {message.text && <CopyButton text={message.text} label="Copy answer" />}
            {isLast && !isBusy && <IconButton icon="retry" label="Answer again" onClick={() => retry(conversation)} />}
          </span>
          <Account message={message} />
        </footer>
      )}
    </article>
  );
}

/** What the model said, and why it failed if it did. */
export function Said({ message }: { message: Message }) {
  return (
    <>
      {message.reasoning && (
        <details class="reasoning">
          <summary>Reasoning</summary>
          <Markdown text={message.reasoning} />
        </details>
      )}
      {message.text && <Markdown text={message.text} />}
      {message.error && (
        <div class="fault" role="alert">
          <strong>The answer failed.</strong> {message.error}
        </div>
      )}
    </>
  );
}

/** What happens before the first token. */
export function Waiting({ conversation }: { conversation: string }) {
  const now = tick.value;
  const id = traces.value.get(conversation)?.id;
  const prompt = now?.prompts.find((one) => one.id === id) ?? (now?.prompts.length === 1 ? now.prompts[0] : undefined);
  const share = prompt && prompt.tokens > 0 ? prompt.prefilled / prompt.tokens : null;
  return (
    <div class="waiting">
      <p>
        {prompt
          ? `Prefill: ${count(prompt.prefilled)} of ${many(prompt.tokens, "token")}`
          : now?.waiting
            ? `Waiting for a slot, ${count(now.waiting)} in the queue`
            : "Waiting for the first token"}
      </p>
      <progress max={1} {...(share !== null && { value: share })} aria-label="Prefill" />
    </div>
  );
}

/** Why an answer ended, unless the model ended it. */
export const FINISHES: Record<string, string> = {
  length: "cut at the limit of tokens",
  stopped: "stopped",
  abort: "ended by the server",
};

/** One line on what an answer cost. */
function Account({ message }: { message: Message }) {
  const { usage, timing, finish, sampled } = message;
  const tokens = usage?.completion_tokens ?? sampled ?? 0;
  const speed = timing && timing.rest > 0 ? (tokens - 1) / timing.rest : 0;
  const kv = usage?.kv;
  const said = [
    finish && FINISHES[finish],
    tokens > 0 && `${usage ? "" : "about "}${many(tokens, "token")}`,
    speed > 0 && `${rate(speed)} tokens/s`,
    timing && `first after ${seconds(timing.first)}`,
    kv && usage && `prefill kept ${count(kv.kept)} of ${count(usage.prompt_tokens)} prompt tokens`,
    kv && kv.ring_wraps > 0 && `ring wrapped ${times(kv.ring_wraps)}`,
    kv && `${bytes(kv.bytes_held)} held`,
  ];
  return <small>{said.filter(Boolean).join(" · ")}</small>;
}
