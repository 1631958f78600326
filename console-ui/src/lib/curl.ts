// A command that works when it is pasted into a POSIX shell.

function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

export function chatCommand(base: string, model: string, needsKey: boolean): string {
  const body = JSON.stringify({ model, messages: [{ role: "user", content: "Say hello." }] });
  const key = needsKey ? ` -H "Authorization: Bearer $LIFEBOAT_API_KEY"` : "";
  return `curl ${quoted(`${base}/v1/chat/completions`)} -H 'content-type: application/json'${key} -d ${quoted(body)}`;
}
