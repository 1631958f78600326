// Calls tools with the `@anthropic-ai/sdk` package for Node as an application would.
//
// Usage: node anthropic_tools.mjs BASE MODEL [KEY]; see ../openai_tools.py. Every check throws on failure.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

const [base, model, key] = process.argv.slice(2);
const client = new Anthropic({ baseURL: base, apiKey: key ?? "none", maxRetries: 0, timeout: 120_000 });
const input_schema = {
  type: "object",
  properties: { town: { type: "string", enum: ["Oslo", "Rome"] }, days: { type: "integer" } },
  required: ["town", "days"],
};
const tool = { name: "weather", description: "The weather in a town.", input_schema };
const messages = [{ role: "user", content: "How is the weather in Oslo?" }];
const request = { model, messages, max_tokens: 64, tools: [tool], tool_choice: { type: "any" } };
const check = (given) => assert(["Oslo", "Rome"].includes(given.town) && Number.isInteger(given.days), JSON.stringify(given));

const whole = await client.messages.create(request);
assert.equal(whole.stop_reason, "tool_use");
assert.deepEqual(whole.content.map((block) => [block.type, block.name]), [["tool_use", "weather"]]);
check(whole.content[0].input);

let pieces = 0;
const final = await client.messages.stream(request).on("inputJson", (piece) => (pieces += piece ? 1 : 0)).finalMessage();
assert.equal(final.stop_reason, "tool_use");
assert.deepEqual(final.content[0].input, whole.content[0].input);
assert(pieces > 1, `${pieces} pieces`);

const result = { type: "tool_result", tool_use_id: whole.content[0].id, content: "Snow, -3 degrees." };
const told = [...messages, { role: "assistant", content: whole.content }, { role: "user", content: [result] }];
const answer = await client.messages.create({ model, messages: told, tools: [tool], max_tokens: 16 });
assert.deepEqual(answer.content.map((block) => block.type), ["text"]);
assert(["end_turn", "max_tokens"].includes(answer.stop_reason), answer.stop_reason);

// The package's own loop calls the function and sends what it gave, streamed and not.
for (const stream of [false, true]) {
  const given = [];
  const run = (input) => given.push(input) && "Snow, -3 degrees.";
  const weather = betaTool({ name: "weather", description: tool.description, inputSchema: input_schema, run });
  const runner = client.beta.messages.toolRunner({ ...request, tools: [weather], max_iterations: 3, stream });
  const last = await runner.runUntilDone();
  assert.equal(given.length, 1);
  check(given[0]);
  assert(last.content[0].text.trim());
}
console.log("anthropic for node, tools ok");
