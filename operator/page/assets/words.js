// Quantities and names as short text.

const NARROW = "\u00a0";

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; count >= 1024 && at < units.length - 1; at++) count /= 1024;
  return `${count.toFixed(at > 0 && count < 100 && count !== Math.round(count) ? 1 : 0)}${NARROW}${units[at]}`;
}

export function duration(ms) {
  if (ms < 10) return `${ms.toFixed(1)}${NARROW}ms`;
  return ms < 1000 ? `${Math.round(ms)}${NARROW}ms` : `${Number((ms / 1000).toFixed(1))}${NARROW}s`;
}

export function age(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 120) return `${seconds}${NARROW}s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)}${NARROW}min` : `${Math.round(seconds / 3600)}${NARROW}h`;
}

export function percent(permille, digits = 1) {
  return `${(permille / 10).toFixed(digits)}${NARROW}%`;
}

export function rate(perSecond) {
  return perSecond === null || perSecond === undefined ? "–" : `${Math.round(perSecond)}`;
}

export function counted(count, one, many = `${one}s`) {
  return `${count}${NARROW}${count === 1 ? one : many}`;
}

// A move's reason, such as `remap_own`, as words, and how often it moved something.
export function times(move) {
  return move.reason.replaceAll("_", " ") + (move.count > 1 ? `, ${move.count} moves` : "");
}

// The name of a tenant where all on the GPU have one namespace, else with it.
export function shortNames(titles) {
  const alone = new Set(titles.map((title) => title.split("/")[0])).size <= 1;
  return (title) => (alone ? title.slice(title.indexOf("/") + 1) : title);
}

const LEVELS = { fine: 0, watch: 1, bad: 2 };

export function byTrouble(a, b) {
  return LEVELS[b.level] - LEVELS[a.level];
}
