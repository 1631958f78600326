import { expect, test } from "vitest";
import { bytes, parameters } from "./format";

test.each([
  [0, "0 B"],
  [999, "999 B"],
  [98_870_000, "98.9 MB"],
  [999_999, "1.0 MB"],
  [8_100_000_000, "8.1 GB"],
])("%d bytes are written %s", (count, text) => {
  expect(bytes(count)).toBe(text);
});

test.each([
  [134_515_008, "135M"],
  [7_241_732_096, "7.2B"],
])("%d parameters are written %s", (count, text) => {
  expect(parameters(count)).toBe(text);
});
