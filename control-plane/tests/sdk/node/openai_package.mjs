// Drives a server with the `openai` package for Node as an application would.
//
// Usage: node openai_package.mjs BASE MODEL CONTEXT [KEY]; see ../openai_package.py. Every check throws on failure.

import assert from "node:assert/strict";
import OpenAI from "openai";

const [base, model, context, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: key ?? "none", maxRetries: 0, timeout: 120_000 });
const hello = [{ role: "user", content: "Say hello." }];
const request = { model, messages: hello, max_tokens: 12, temperature: 0, seed: 7 };

const names = [];
for await (const entry of client.models.list()) names.push(entry.id);
assert(names.includes(model), names.join());

const whole = await client.chat.completions.create(request);
assert.equal(whole.model, model);
assert(whole.choices[0].message.content.trim());
assert(whole.usage.completion_tokens > 0);

let text = "";
let usage = null;
for await (const chunk of await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } })) {
  text += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].message.content);
assert(usage.completion_tokens > 0);

// Given up in the middle: the next request is served as ever.
const long = await client.chat.completions.create({ ...request, max_tokens: 1000, stream: true });
let seen = 0;
for await (const _ of long) if (++seen === 3) long.controller.abort();
assert(seen >= 3 && seen < 900, `${seen} chunks`);

const reply = await client.responses.create({ model, input: "Say hello.", max_output_tokens: 12 });
assert(reply.output_text.trim());
const events = [];
for await (const event of await client.responses.create({ model, input: "Say hello.", max_output_tokens: 8, stream: true })) events.push(event);
assert.equal(events[0].type, "response.created");
const last = events.at(-1);
assert.equal(last.type, `response.${last.response.status}`);

const refused = async (wanted, code, call) => {
  const error = await call().then(() => assert.fail(`served, but ${code} was expected`), (refusal) => refusal);
  assert(error instanceof wanted, String(error));
  assert.equal(error.code, code);
};
await refused(OpenAI.NotFoundError, "model_not_found", () => client.chat.completions.create({ ...request, model: "nobody/here" }));
const tooLong = [{ role: "user", content: "word ".repeat(2 * Number(context)) }];
await refused(OpenAI.BadRequestError, "context_length_exceeded", () => client.chat.completions.create({ ...request, messages: tooLong }));
if (key) {
  const stranger = new OpenAI({ baseURL: `${base}/v1`, apiKey: "lb_wrong", maxRetries: 0 });
  await refused(OpenAI.AuthenticationError, "invalid_api_key", () => stranger.chat.completions.create(request));
}
console.log("openai for node ok");
