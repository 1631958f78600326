// Drives a server with the `@anthropic-ai/sdk` package for Node as an application would.
//
// Usage: node anthropic_package.mjs BASE MODEL CONTEXT [KEY]; see ../openai_package.py. Every check throws on failure.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const [base, model, context, key] = process.argv.slice(2);
const client = new Anthropic({ baseURL: base, apiKey: key ?? "none", maxRetries: 0, timeout: 120_000 });
const hello = [{ role: "user", content: "Say hello." }];
const request = { model, messages: hello, max_tokens: 12 };
const textOf = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");

const whole = await client.messages.create(request);
assert.equal(whole.model, model);
assert(textOf(whole).trim() && whole.usage.output_tokens > 0);

let text = "";
const stream = client.messages.stream(request).on("text", (piece) => (text += piece));
const final = await stream.finalMessage();
assert(text.trim());
assert.equal(textOf(final), text);
assert(["end_turn", "max_tokens"].includes(final.stop_reason), final.stop_reason);

// Given up in the middle: the next request is served as ever.
const long = client.messages.stream({ ...request, max_tokens: 1000 });
long.on("text", () => long.abort());
await assert.rejects(long.finalMessage(), Anthropic.APIUserAbortError);

const counted = await client.messages.countTokens({ model, messages: hello });
assert(counted.input_tokens > 0);

const refused = async (wanted, kind, call) => {
  const error = await call().then(() => assert.fail(`served, but ${kind} was expected`), (refusal) => refusal);
  assert(error instanceof wanted, String(error));
  assert.equal(error.error.error.type, kind);
};
await refused(Anthropic.NotFoundError, "not_found_error", () => client.messages.create({ ...request, model: "nobody/here" }));
const tooLong = [{ role: "user", content: "word ".repeat(2 * Number(context)) }];
await refused(Anthropic.BadRequestError, "invalid_request_error", () => client.messages.create({ ...request, messages: tooLong }));
if (key) {
  const stranger = new Anthropic({ baseURL: base, apiKey: "lb_wrong", maxRetries: 0 });
  await refused(Anthropic.AuthenticationError, "authentication_error", () => stranger.messages.create(request));
}
console.log("anthropic for node ok");
