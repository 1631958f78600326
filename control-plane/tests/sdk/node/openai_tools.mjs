// Calls tools with the `openai` package for Node as an application would.
//
// Usage: node openai_tools.mjs BASE MODEL [KEY]; see ../openai_tools.py. Every check throws on failure.

import assert from "node:assert/strict";
import OpenAI from "openai";

const [base, model, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: key ?? "none", maxRetries: 0, timeout: 120_000 });
const parameters = {
  type: "object",
  properties: { town: { type: "string", enum: ["Oslo", "Rome"] }, days: { type: "integer" } },
  required: ["town", "days"],
};
const described = { name: "weather", description: "The weather in a town.", parameters };
const messages = [{ role: "user", content: "How is the weather in Oslo?" }];
const check = (text) => {
  const given = JSON.parse(text);
  assert(["Oslo", "Rome"].includes(given.town) && Number.isInteger(given.days), text);
};

// Chat completions, whole and streamed.
const request = { model, messages, max_tokens: 64, tools: [{ type: "function", function: described }], tool_choice: "required" };
const called = (await client.chat.completions.create(request)).choices[0];
assert.equal(called.finish_reason, "tool_calls");
assert.equal(called.message.tool_calls.length, 1);
assert.equal(called.message.tool_calls[0].function.name, "weather");
check(called.message.tool_calls[0].function.arguments);
let pieces = 0;
const final = await client.chat.completions
  .stream(request)
  .on("tool_calls.function.arguments.delta", () => (pieces += 1))
  .finalChatCompletion();
assert.equal(final.choices[0].finish_reason, "tool_calls");
assert.equal(final.choices[0].message.tool_calls[0].function.arguments, called.message.tool_calls[0].function.arguments);
assert(pieces > 1, `${pieces} pieces`);

// The package's own loop calls the function and sends what it gave.
const given = [];
const weather = (input) => given.push(input) && "Snow, -3 degrees.";
const tools = [{ type: "function", function: { ...described, function: weather, parse: JSON.parse } }];
for (const stream of [false, true]) {
  const text = await client.chat.completions.runTools({ ...request, tools, stream }).finalContent();
  assert(text.trim(), "words after the result");
  check(JSON.stringify(given.pop()));
  assert.equal(given.length, 0);
}

// Responses, whole and streamed.
const asked = { model, input: messages, max_output_tokens: 64, tools: [{ type: "function", strict: false, ...described }], tool_choice: "required" };
const reply = await client.responses.create(asked);
const call = reply.output[0];
assert.deepEqual([reply.status, call.type, call.name, call.status], ["completed", "function_call", "weather", "completed"]);
check(call.arguments);
const events = [];
for await (const event of await client.responses.create({ ...asked, stream: true })) events.push(event);
assert.equal(events.filter((event) => event.type === "response.function_call_arguments.delta").map((event) => event.delta).join(""), call.arguments);
assert.equal(events.at(-1).type, "response.completed");
const gathered = await client.responses.stream(asked).finalResponse();
assert.equal(gathered.output[0].arguments, call.arguments);
const output = { type: "function_call_output", call_id: call.call_id, output: "Snow, -3 degrees." };
const answer = await client.responses.create({ ...asked, tool_choice: "auto", input: [...messages, ...reply.output, output] });
assert(answer.output_text.trim());
assert.deepEqual(answer.output.map((item) => item.type), ["message"]);
console.log("openai for node, tools ok");
