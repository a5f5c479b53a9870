import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { hello } from "../api/live";
import { count, many } from "../text/format";
import { CopyButton } from "../ui/CopyButton";
import { Icon } from "../ui/Icon";
import { IconButton } from "../ui/IconButton";
import { Answer } from "./Answer";
import { Comparison } from "./Comparison";
import { comparisonOf } from "./compare";
import type { Conversation, Doc, Message } from "./conversations";
import { beginEdit } from "./editing";
import { attachExample, cautionOf } from "./example";
import { running } from "./exchange";

const NEAR_END = 80;

export function Messages({ conversation }: { conversation: Conversation }) {
  const scroller = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const compared = comparisonOf(conversation);
  useEffect(() => {
    follows.current = true;
  }, [conversation.id]);
  useLayoutEffect(() => {
    const box = scroller.current;
    if (box && follows.current && !compared) box.scrollTop = box.scrollHeight;
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
        {messages.length === 0 && !compared && <Welcome />}
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
        {compared && <Comparison key={compared.asked.id} id={conversation.id} compared={compared} />}
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

interface Asked {
  message: Message;
  conversation: Conversation;
  isLast: boolean;
}

function Question({ message, conversation, isLast }: Asked) {
  const caution = cautionOf(message.docs ?? []);
  return (
    <article class="message question" aria-label="You">
      {message.docs?.map((doc) => (
        <DocChip key={doc.id} doc={doc} />
      ))}
      {caution && <p class="note">{caution}</p>}
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
