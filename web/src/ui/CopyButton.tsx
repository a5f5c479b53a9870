import { useState } from "preact/hooks";
import { announce } from "./announce";
import { IconButton } from "./IconButton";

const SHOWN = 1500;

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    if (!(await copyText(text))) return;
    setCopied(true);
    announce("Copied.");
    setTimeout(() => setCopied(false), SHOWN);
  };
  return <IconButton icon={copied ? "check" : "copy"} onClick={copy} label={label} />;
}

/** Copy a text; also over plain HTTP, where there is no navigator.clipboard. */
async function copyText(text: string): Promise<boolean> {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "off-screen";
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  return isDone;
}
