import { expect, test } from "vitest";
import { viewOf } from "./view";

test.each([
  ["", "servers"],
  ["#/", "servers"],
  ["#/models", "models"],
  ["#/engines?x=1", "engines"],
  ["#/nonsense", "servers"],
])("%s shows %s", (hash, view) => {
  expect(viewOf(hash)).toBe(view);
});
