import { describe, expect, it } from "vitest";
import { EventParser, events, type ServerEvent } from "../src/api/sse";

const STREAM =
  '\uFEFF: a comment\n\nevent: hello\r\ndata: {"a":1}\r\n\r\ndata: one\ndata:two\n\nevent: empty\n\nid: 7\ndata\n\rdata: é€😀\r\rdata: [DONE]\n\n';

const EXPECTED: ServerEvent[] = [
  { event: "hello", data: '{"a":1}' },
  { event: "message", data: "one\ntwo" },
  { event: "message", data: "" },
  { event: "message", data: "é€😀" },
  { event: "message", data: "[DONE]" },
];

describe("the parser of server-sent events", () => {
  it("reads a stream that comes at once", () => {
    expect(new EventParser().push(STREAM)).toEqual(EXPECTED);
  });

  it.each([1, 2, 3, 5, 7, 11])("reads it in pieces of %i characters", (size) => {
    const parser = new EventParser();
    const found: ServerEvent[] = [];
    for (let at = 0; at < STREAM.length; at += size) found.push(...parser.push(STREAM.slice(at, at + size)));
    expect(found).toEqual(EXPECTED);
  });

  it("waits for the end of an event", () => {
    const parser = new EventParser();
    expect(parser.push("data: a\n")).toEqual([]);
    expect(parser.push("\n")).toEqual([{ event: "message", data: "a" }]);
  });

  it.each([1, 2, 3, 4])("joins characters that are cut between chunks of %i bytes", async (size) => {
    const bytes = new TextEncoder().encode(STREAM);
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
        controller.close();
      },
    });
    const found: ServerEvent[] = [];
    for await (const event of events(new Response(body))) found.push(event);
    expect(found).toEqual(EXPECTED);
  });
});
