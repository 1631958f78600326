// How numbers are written. Sizes are decimal, as disks, model pages and the command line count them.

const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function bytes(count: number): string {
  let value = count;
  let unit = 0;
  while (value >= 999.95 && unit + 1 < UNITS.length) {
    value /= 1000;
    unit += 1;
  }
  return unit === 0 ? `${count} B` : `${value.toFixed(1)} ${UNITS[unit]}`;
}

// 134515008 -> "135M", 7241732096 -> "7.2B": parameters as people say them.
export function parameters(count: number): string {
  if (count >= 1e9) return `${(count / 1e9).toFixed(1)}B`;
  if (count >= 1e6) return `${Math.round(count / 1e6)}M`;
  return String(count);
}

export function tokens(count: number): string {
  return count.toLocaleString("en");
}
