// Limits, refusals and clients that leave, with the `@anthropic-ai/sdk` package for Node as an application would meet them.
//
// Usage: node anthropic_limits.mjs BASE MODEL KEY ADMIN; see ../openai_limits.py. Every check throws on failure.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { refused, waitForSlots } from "./slots.mjs";

const [base, model, key, admin] = process.argv.slice(2);
const options = { baseURL: base, maxRetries: 0, timeout: 60_000 };
const client = new Anthropic({ ...options, apiKey: key });
const request = { model, messages: [{ role: "user", content: "hi" }], max_tokens: 4000 };

// One at once, and no more; left in the middle, the slot is free.
const running = client.messages.stream(request);
const left = refused(Anthropic.APIUserAbortError, () => running.finalMessage());
await new Promise((resolve) => running.once("text", resolve));
await waitForSlots(base, admin, 1);
for (const stream of [false, true]) {
  const refusal = await refused(Anthropic.RateLimitError, () => client.messages.create({ ...request, stream }));
  assert.equal(refusal.type, "rate_limit_error");
  assert(refusal.requestID);
  assert.deepEqual([refusal.headers.get("retry-after"), refusal.headers.get("retry-after-ms")], ["1", "1000"]);
}
running.abort();
await left;
await waitForSlots(base, admin, 0);

// Given up before any reply.
const leaving = new AbortController();
const reply = refused(Anthropic.APIUserAbortError, () => client.messages.create(request, { signal: leaving.signal }));
await waitForSlots(base, admin, 1);
leaving.abort();
await reply;
await waitForSlots(base, admin, 0);

const stranger = new Anthropic({ ...options, apiKey: "lb_wrong" });
const tooLong = [{ role: "user", content: "word ".repeat(20_000) }];
for (const [asker, change, wanted, type] of [
  [stranger, {}, Anthropic.AuthenticationError, "authentication_error"],
  [client, { model: "nobody/here" }, Anthropic.NotFoundError, "not_found_error"],
  [client, { messages: tooLong }, Anthropic.BadRequestError, "invalid_request_error"],
])
  for (const stream of [false, true]) {
    const refusal = await refused(wanted, () => asker.messages.create({ ...request, ...change, stream }));
    assert.equal(refusal.type, type);
    assert(refusal.requestID);
  }
console.log("anthropic for node, limits ok");
