// Time before the next try, in milliseconds: doubles from half a second, capped at 15 s, with a spread of a
// quarter so that many consoles do not come back at the same moment. `random` is 0..1.

export function backoff(failures: number, random: number): number {
  const full = Math.min(500 * 2 ** Math.max(0, failures - 1), 15_000);
  return Math.round(full * (0.75 + random / 4));
}
