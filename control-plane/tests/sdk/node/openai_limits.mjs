// Limits, refusals and clients that leave, with the `openai` package for Node as an application would meet them.
//
// Usage: node openai_limits.mjs BASE MODEL KEY ADMIN; see ../openai_limits.py. Every check throws on failure.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { refused, waitForSlots } from "./slots.mjs";

const [base, model, key, admin] = process.argv.slice(2);
const options = { baseURL: `${base}/v1`, maxRetries: 0, timeout: 60_000 };
const client = new OpenAI({ ...options, apiKey: key });
const messages = [{ role: "user", content: "hi" }];
const begun = async (stream, events) => {
  const all = stream[Symbol.asyncIterator]();
  for (let seen = 0; seen < events; seen++) assert(!(await all.next()).done);
  return stream.controller;
};

// One at once, and no more; left in the middle, the slot is free.
for (const start of [
  () => client.chat.completions.create({ model, messages, stream: true }),
  () => client.responses.create({ model, input: "hi", stream: true }),
]) {
  const running = await begun(await start(), 4);
  await waitForSlots(base, admin, 1);
  for (const second of [() => client.chat.completions.create({ model, messages }), () => client.responses.create({ model, input: "hi" })]) {
    const refusal = await refused(OpenAI.RateLimitError, second);
    assert.equal(refusal.code, "rate_limit_exceeded");
    assert(refusal.requestID);
    assert.deepEqual([refusal.headers.get("retry-after"), refusal.headers.get("retry-after-ms")], ["1", "1000"]);
  }
  running.abort();
  await waitForSlots(base, admin, 0);
}

// Given up before any reply.
for (const call of [
  (signal) => client.chat.completions.create({ model, messages }, { signal }),
  (signal) => client.responses.create({ model, input: "hi" }, { signal }),
]) {
  const leaving = new AbortController();
  const reply = refused(OpenAI.APIUserAbortError, () => call(leaving.signal));
  await waitForSlots(base, admin, 1);
  leaving.abort();
  await reply;
  await waitForSlots(base, admin, 0);
}

const stranger = new OpenAI({ ...options, apiKey: "lb_wrong" });
for (const [asker, name, words, wanted, code] of [
  [stranger, model, "hi", OpenAI.AuthenticationError, "invalid_api_key"],
  [client, "nobody/here", "hi", OpenAI.NotFoundError, "model_not_found"],
  [client, model, "word ".repeat(20_000), OpenAI.BadRequestError, "context_length_exceeded"],
])
  for (const stream of [false, true])
    for (const call of [
      () => asker.chat.completions.create({ model: name, messages: [{ role: "user", content: words }], stream }),
      () => asker.responses.create({ model: name, input: words, stream }),
    ]) {
      const refusal = await refused(wanted, call);
      assert.equal(refusal.code, code);
      assert(refusal.requestID);
    }
console.log("openai for node, limits ok");
