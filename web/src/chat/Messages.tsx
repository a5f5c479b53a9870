import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { hello, tick } from "../api/live";
import { times } from "../cache/words";
import { traces } from "../memory/trace";
import { bytes, count, many, rate, seconds } from "../text/format";
import { Markdown } from "../text/Markdown";
import { CopyButton } from "../ui/CopyButton";
import { Icon } from "../ui/Icon";
import { IconButton } from "../ui/IconButton";
import type { Conversation, Doc, Message } from "./conversations";
import { beginEdit } from "./editing";
import { attachExample } from "./example";
import { retry, running } from "./exchange";

const NEAR_END = 80;

export function Messages({ conversation }: { conversation: Conversation }) {
  const scroller = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  useEffect(() => {
    follows.current = true;
  }, [conversation.id]);
  useLayoutEffect(() => {
    const box = scroller.current;
    if (box && follows.current) box.scrollTop = box.scrollHeight;
  });
  const onScroll = () => {
    const box = scroller.current;
    if (box) follows.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
  };
  const { messages } = conversation;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the conversation is scrolled with the keyboard
    <section class="messages" ref={scroller} onScroll={onScroll} tabIndex={0} aria-label="Conversation">
      <div class="column">
        {messages.length === 0 && <Welcome />}
        {messages.map((message, i) =>
          message.role === "user" ? (
            <Question
              key={message.id}
              message={message}
              conversation={conversation}
              isLast={i >= messages.length - 2}
            />
          ) : (
            <Answer key={message.id} message={message} conversation={conversation} isLast={i === messages.length - 1} />
          ),
        )}
      </div>
    </section>
  );
}

function Welcome() {
  const limits = hello.value?.limits;
  return (
    <div class="welcome">
      <h2>Chat, and watch the cache</h2>
      <p>
        Paste a long document and ask about it. Each request holds a fixed number of tokens
        {limits && ` (here at most ${count(limits.capacity)})`}, however long it runs. The picture of the memory shows
        which ones stay.
      </p>
      <button type="button" onClick={() => void attachExample()}>
        Attach an example document
      </button>
    </div>
  );
}

interface Shown {
  message: Message;
  conversation: Conversation;
  isLast: boolean;
}

function Question({ message, conversation, isLast }: Shown) {
  return (
    <article class="message question" aria-label="You">
      {message.docs?.map((doc) => (
        <DocChip key={doc.id} doc={doc} />
      ))}
      {message.text && <p class="said">{message.text}</p>}
      {isLast && !running.value.has(conversation.id) && (
        <p class="tools">
          <CopyButton text={message.text} label="Copy question" />
          <IconButton icon="edit" label="Edit question" title="Edit" onClick={() => beginEdit(conversation, message)} />
        </p>
      )}
    </article>
  );
}

export function DocChip({ doc, onRemove }: { doc: Doc; onRemove?: () => void }) {
  return (
    <span class="chip" title={doc.text.slice(0, 300)}>
      <Icon name="file" />
      <span class="chip-name">{doc.name}</span>
      <span class="chip-count">{doc.tokens === null ? "counting…" : many(doc.tokens, "token")}</span>
      {onRemove && <IconButton icon="close" label={`Remove ${doc.name}`} onClick={onRemove} />}
    </span>
  );
}

function Answer({ message, conversation, isLast }: Shown) {
  const isRunning = isLast && running.value.has(conversation.id);
  return (
    <article class="message answer" aria-label="Answer" aria-busy={isRunning}>
      {message.reasoning && (
        <details class="reasoning">
          <summary>Reasoning</summary>
          <Markdown text={message.reasoning} />
        </details>
      )}
      {message.text && <Markdown text={message.text} />}
      {isRunning && !message.text && <Waiting conversation={conversation.id} />}
      {message.error && (
        <div class="fault" role="alert">
          <strong>The answer failed.</strong> {message.error}
        </div>
      )}
      {!isRunning && (
        <footer>
          <span class="tools">
            {message.text && <CopyButton text={message.text} label="Copy answer" />}
            {isLast && <IconButton icon="retry" label="Answer again" onClick={() => retry(conversation)} />}
          </span>
          <Account message={message} />
        </footer>
      )}
    </article>
  );
}

/** What happens before the first token. */
function Waiting({ conversation }: { conversation: string }) {
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

const FINISHES: Record<string, string> = {
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
