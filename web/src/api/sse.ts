/** Server-sent events from a fetch body: EventSource cannot send an API key. */

export interface ServerEvent {
  event: string;
  data: string;
}

/** Collects chunks of text and returns the events that are complete. */
export class EventParser {
  private rest = "";
  private event = "";
  private data: string[] = [];
  private started = false;

  /** Return the events that end in this chunk; a chunk may end anywhere. */
  push(chunk: string): ServerEvent[] {
    let text = this.rest + chunk;
    if (!this.started && text) {
      this.started = true;
      text = text.replace(/^\uFEFF/, "");
    }
    // A final \r may be the first half of \r\n, so it waits for the next chunk.
    const held = text.endsWith("\r") ? "\r" : "";
    const lines = text.slice(0, text.length - held.length).split(/\r\n|\n|\r/);
    this.rest = (lines.pop() ?? "") + held;
    return lines.flatMap((line) => this.line(line));
  }

  private line(line: string): ServerEvent[] {
    if (line === "") return this.dispatch();
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.data.push(value);
    if (field === "event") this.event = value;
    return [];
  }

  private dispatch(): ServerEvent[] {
    const done = { event: this.event || "message", data: this.data.join("\n") };
    const isEmpty = this.data.length === 0;
    this.event = "";
    this.data = [];
    return isEmpty ? [] : [done];
  }
}

/** Yield the events of a response until it ends. */
export async function* events(response: Response): AsyncGenerator<ServerEvent> {
  if (!response.body) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    // The reader of a stream that was aborted rejects; nobody waits for it.
    reader.cancel().catch(() => undefined);
  }
}
