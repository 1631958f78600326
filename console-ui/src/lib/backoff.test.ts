import { expect, test } from "vitest";
import { backoff } from "./backoff";

test("waits grow and stay under the cap", () => {
  expect([1, 2, 3].map((failures) => backoff(failures, 1))).toEqual([500, 1000, 2000]);
  expect(backoff(1000, 1)).toBe(15_000);
});

test("the spread never takes more than a quarter away", () => {
  expect(backoff(1, 0)).toBe(375);
});
