// Cuts a stream of text into server-sent events. Only what the console needs: that something happened, its
// name and its data. Comments (heartbeats) give no event.

export interface ServerEvent {
  name: string;
  data: string;
}

export class EventReader {
  private rest = "";

  push(text: string): ServerEvent[] {
    const blocks = (this.rest + text.replaceAll("\r\n", "\n")).split("\n\n");
    this.rest = blocks.pop() ?? "";
    return blocks.flatMap((block) => {
      const event = { name: "message", data: [] as string[] };
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) event.name = line.slice(6).trim();
        if (line.startsWith("data:")) event.data.push(line.slice(5).replace(/^ /, ""));
      }
      return event.data.length > 0 ? [{ name: event.name, data: event.data.join("\n") }] : [];
    });
  }
}
