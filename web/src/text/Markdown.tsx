/**
 * Markdown as elements. Marked only reads it; no HTML is ever made, so nothing in an answer can run.
 *
 * HTML in an answer is shown as text. Links open elsewhere, and only http, https and mailto are links. Images are links,
 * since the page loads nothing from other places.
 */

import { lexer, type Token, type Tokens } from "marked";
import type { ComponentChildren, VNode } from "preact";
import { useMemo } from "preact/hooks";
import { CodeBlock } from "../ui/CodeBlock";
import { decoded } from "./entities";

export function Markdown({ text }: { text: string }) {
  const tokens = useMemo(() => lexer(text), [text]);
  return <div class="prose">{each(tokens)}</div>;
}

type Render = (token: never) => ComponentChildren;

const BLOCKS: Record<string, Render> = {
  heading: (t: Tokens.Heading) => heading(t),
  paragraph: (t: Tokens.Paragraph) => <p>{each(t.tokens)}</p>,
  code: (t: Tokens.Code) => <CodeBlock code={t.text} language={(t.lang ?? "").split(/\s/)[0] ?? ""} />,
  blockquote: (t: Tokens.Blockquote) => <blockquote>{each(t.tokens)}</blockquote>,
  list: (t: Tokens.List) => (t.ordered ? <ol start={Number(t.start) || 1}>{items(t)}</ol> : <ul>{items(t)}</ul>),
  table: (t: Tokens.Table) => table(t),
  hr: () => <hr />,
  space: () => null,
  def: () => null,
  checkbox: () => null,
  strong: (t: Tokens.Strong) => <strong>{each(t.tokens)}</strong>,
  em: (t: Tokens.Em) => <em>{each(t.tokens)}</em>,
  del: (t: Tokens.Del) => <del>{each(t.tokens)}</del>,
  codespan: (t: Tokens.Codespan) => <code>{t.text}</code>,
  br: () => <br />,
  link: (t: Tokens.Link) => link(t.href, each(t.tokens)),
  image: (t: Tokens.Image) => link(t.href, t.text || t.href),
  escape: (t: Tokens.Escape) => t.text,
  html: (t: Tokens.HTML) => t.raw,
  text: (t: Tokens.Text) => (t.tokens ? each(t.tokens) : decoded(t.raw)),
};

function each(tokens: readonly Token[] | undefined): ComponentChildren[] {
  return (tokens ?? []).map((token) => (BLOCKS[token.type] ?? ((t: Token) => t.raw))(token as never));
}

function heading(t: Tokens.Heading): VNode {
  // The page has its own h1 and h2; an answer's headings come below them.
  const Level = `h${Math.min(6, t.depth + 2)}` as "h3";
  return <Level>{each(t.tokens)}</Level>;
}

function items(list: Tokens.List): ComponentChildren {
  return list.items.map((item) => (
    <li class={item.task ? "task" : undefined}>
      {item.task && <input type="checkbox" checked={item.checked ?? false} disabled aria-label="task" />}
      {each(item.tokens)}
    </li>
  ));
}

function table(t: Tokens.Table): VNode {
  const align = (i: number) => ({ class: `align-${t.align[i] ?? "left"}` });
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a wide table is scrolled with the keyboard
    <section class="scroll-x" tabIndex={0} aria-label="table">
      <table>
        <thead>
          <tr>
            {t.header.map((cell, i) => (
              <th {...align(i)}>{each(cell.tokens)}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {t.rows.map((row) => (
            <tr>
              {row.map((cell, i) => (
                <td {...align(i)}>{each(cell.tokens)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

const SAFE = /^(https?:|mailto:)/i;

function link(href: string, children: ComponentChildren): ComponentChildren {
  if (!SAFE.test(href)) return children;
  return (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}
