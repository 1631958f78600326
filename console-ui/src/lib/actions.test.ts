import { expect, test } from "vitest";
import { actionsFor } from "./actions";

test("a ready row can be restarted and stopped, not started", () => {
  expect(actionsFor("ready", true)).toEqual(["restart", "stop"]);
});

test("a row that drains has no buttons", () => {
  expect(actionsFor("draining", true)).toEqual([]);
});

test("a server somebody else runs is never restarted from here", () => {
  expect(actionsFor("ready", false)).toEqual(["stop"]);
});
