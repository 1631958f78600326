import { expect, test } from "vitest";
import { EventReader } from "./events";

test("events come out whole however the text is cut", () => {
  const stream = ': waiting\n\nevent: server\ndata: {"id":1}\n\ndata: a\ndata: b\n\n';
  for (let size = 1; size <= stream.length; size += 1) {
    const reader = new EventReader();
    const events = [];
    for (let at = 0; at < stream.length; at += size) events.push(...reader.push(stream.slice(at, at + size)));
    expect(events).toEqual([
      { name: "server", data: '{"id":1}' },
      { name: "message", data: "a\nb" },
    ]);
  }
});
