import { expect, test } from "vitest";
import { chatCommand } from "./curl";

test("a model name with a quote cannot break out of the command", () => {
  const command = chatCommand("http://127.0.0.1:4180", "it's; rm -rf /", false);
  expect(command).toContain(`"model":"it'\\''s; rm -rf /"`);
});

test("the key is named by its variable, never written out", () => {
  expect(chatCommand("http://h", "m", true)).toContain('-H "Authorization: Bearer $LIFEBOAT_API_KEY"');
  expect(chatCommand("http://h", "m", false)).not.toContain("Authorization");
});
