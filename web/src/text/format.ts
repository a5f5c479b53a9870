/** Figures as people read them. */

const NUMBERS = new Intl.NumberFormat("en");
const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function count(n: number): string {
  return NUMBERS.format(Math.round(n));
}

/** Return "1 token", "2,000 tokens". */
export function many(n: number, noun: string): string {
  const plural = noun.endsWith("y") ? `${noun.slice(0, -1)}ies` : `${noun}s`;
  return `${count(n)} ${Math.round(n) === 1 ? noun : plural}`;
}

/** Return bytes with three significant figures, in powers of 1,000 as ringkv prints them everywhere. */
export function bytes(n: number): string {
  const power = n < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log10(n) / 3));
  const scaled = n / 1000 ** power;
  return `${significant(scaled)} ${UNITS[power]}`;
}

/** Return seconds as "38 ms", "1.24 s", "75 s". */
export function seconds(s: number | null | undefined): string {
  if (s === null || s === undefined) return "–";
  return s < 1 ? `${significant(1000 * s)} ms` : `${significant(s)} s`;
}

export function rate(n: number): string {
  return significant(n);
}

export function percent(share: number): string {
  return `${Math.round(100 * share)}%`;
}

function significant(n: number): string {
  if (n === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(n))));
  return NUMBERS.format(Number(n.toFixed(Math.min(digits, 2))));
}
