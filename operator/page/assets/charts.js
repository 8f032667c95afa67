// Pictures of a history, as SVG. Each has its words beside it, so all are hidden from readers of the page's text.
import { times } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
export const SPAN_MS = 900000;
const LEAST_SPAN_MS = 60000;

// Length of the time axis: from the first sample to now, within the limits above.
export function span(past, now) {
  return Math.min(SPAN_MS, Math.max(LEAST_SPAN_MS, now - (past?.at[0] ?? now)));
}

function shape(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function picture(className, width, height, ...children) {
  const attributes = { class: className, viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true", focusable: "false" };
  return shape("svg", attributes, ...children);
}

const round = (value) => Math.round(value * 10) / 10;

// The outline of a band between two step functions of time; points where neither changes are left out.
function band(xs, low, high, end) {
  let path = "";
  const back = [];
  for (let at = 0; at < xs.length; at++) {
    if (at > 0 && low[at] === low[at - 1] && high[at] === high[at - 1]) continue;
    path += path ? `H${xs[at]}V${high[at]}` : `M${xs[at]} ${high[at]}`;
    back.push([xs[at], low[at]]);
  }
  path += `H${end}`;
  for (const [x, y] of back.reverse()) {
    path += `V${y}H${x}`;
  }
  return `${path}Z`;
}

// The time axis from `left` to `right`, which is now: where a moment lies on it, and its marks.
function timeAxis(left, right, now, length) {
  const x = (at) => round(left + Math.max(0, 1 - (now - at) / length) * (right - left));
  const short = length <= 120000;
  const steps = short ? [10, 30, 60] : [60, 120, 300];
  const step = steps.find((one) => (one * 1000 * (right - left)) / length >= 100) ?? steps.at(-1);
  const marks = [];
  for (let ago = step; ago * 1000 <= length; ago += step) marks.push({ x: x(now - ago * 1000), text: short ? `−${ago} s` : `−${ago / 60} min` });
  return { x, marks };
}

const timeText = (mark, left, y) => shape("text", { class: "tick", x: mark.x, y, "text-anchor": mark.x - left < 24 ? "start" : "middle" }, mark.text);
const nowText = (right, y) => shape("text", { class: "tick", x: right, y, "text-anchor": "end" }, "now");

function grid(marks, left, right, top, bottom, capacity, bytes) {
  const made = [];
  for (const part of [0, 0.5, 1]) {
    const y = round(bottom - part * (bottom - top));
    made.push(shape("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
    made.push(shape("text", { class: "tick", x: left - 6, y: y + 4, "text-anchor": "end" }, part ? bytes(capacity * part) : "0"));
  }
  for (const mark of marks) {
    made.push(shape("line", { class: "grid", x1: mark.x, x2: mark.x, y1: top, y2: bottom }));
    made.push(timeText(mark, left, bottom + 16));
  }
  made.push(nowText(right, bottom + 16));
  return made;
}

export const KINDS = ["weights", "kv", "other"];

// Who holds the memory of a GPU, through time: a band for each tenant's weights, KV and all else, on top of each other.
export function memory(gpu, past, now, width, bytes, name) {
  const height = Math.min(320, Math.max(200, width / 3.2));
  const labels = width > 640 ? 120 : 0;
  const [left, right, top, bottom] = [62, width - labels - 8, 8, height - 24];
  const { x, marks } = timeAxis(left, right, now, span(past, now));
  const y = (kib) => round(bottom - Math.min(1, (kib * 1024) / Math.max(1, gpu.capacity_bytes)) * (bottom - top));
  const xs = past.at.map(x);
  const made = xs.length ? [shape("rect", { class: "unowned", x: xs[0], width: round(right - xs[0]), y: top, height: bottom - top })] : [];
  made.push(...grid(marks, left, right, top, bottom, gpu.capacity_bytes, bytes));
  const sum = xs.map(() => 0);
  const titles = [...new Set([...Object.keys(past.tenants), ...gpu.tenants.map((tenant) => tenant.title)])].sort();
  for (const title of titles) {
    const columns = past.tenants[title];
    const shown = gpu.tenants.find((tenant) => tenant.title === title);
    if (!columns) continue;
    const first = y(sum[sum.length - 1]);
    for (const kind of KINDS) {
      const low = sum.map(y);
      for (let at = 0; at < sum.length; at++) sum[at] += columns[kind][at] ?? 0;
      const high = sum.map(y);
      const colour = shown ? `c${shown.colour}` : "gone";
      if (low.some((value, at) => value !== high[at])) made.push(shape("path", { class: `band ${colour} ${kind}`, d: band(xs, low, high, right) }));
    }
    const last = y(sum[sum.length - 1]);
    if (labels && first - last > 14) {
      made.push(shape("text", { class: "label", x: right + 8, y: round((first + last) / 2 + 4) }, name(title).slice(0, 16)));
    }
  }
  const free = y(sum[sum.length - 1] ?? 0);
  if (labels && free - top > 14) made.push(shape("text", { class: "tick", x: right + 8, y: round((free + top) / 2 + 4) }, "free"));
  return picture("memory", width, height, ...made);
}

// One figure through time. Where it is not known there is a gap.
export function spark(past, values, now, width, height, limit) {
  const at = past?.at ?? [];
  const known = values.filter((value) => value !== null);
  const most = Math.max(limit ?? 0, ...known, 1);
  const { x } = timeAxis(0, width, now, span(past, now));
  const y = (value) => round(height - 1.5 - (value / most) * (height - 3));
  let [line, before] = ["", null];
  values.forEach((value, index) => {
    if (value !== null && (value !== before || values[index + 1] !== value)) line += `${before === null ? "M" : "L"}${x(at[index])} ${y(value)}`;
    before = value;
  });
  const made = [shape("line", { class: "grid", x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 })];
  if (limit && known.length) made.push(shape("line", { class: "limit", x1: 0, x2: width, y1: y(limit), y2: y(limit) }));
  if (line) made.push(shape("path", { class: "line", d: line }));
  return picture("spark", width, height, ...made);
}

// Where each layer of a model is, front first.
export function layers(letters, width) {
  const each = width / letters.length;
  const gap = each > 4 ? 1 : 0;
  const made = [...letters].map((letter, at) => shape("rect", {
    class: `layer l-${letter}`, x: round(at * each), width: Math.max(0.5, round(each - gap)), y: letter === "m" ? 6 : 0.5, height: letter === "m" ? 7.5 : 13,
  }));
  return picture("layers", width, 14, ...made);
}

// Loans as flows, from the lenders on the left to the borrowers on the right; as wide as they are large.
export function flows(loans, colourOf, name, width) {
  const total = loans.reduce((sum, loan) => sum + loan.bytes, 0);
  const sides = [[...new Set(loans.map((loan) => loan.from))], [...new Set(loans.map((loan) => loan.to))]];
  const [gap, tall] = [14, 110];
  const height = tall + gap * Math.max(...sides.map((side) => side.length));
  const size = (count) => Math.max(3, (count / Math.max(1, total)) * tall);
  const edge = Math.min(110, width / 3);
  const offsets = sides.map((titles, side) => {
    let y = gap / 2;
    return Object.fromEntries(titles.map((title) => {
      const own = loans.filter((loan) => (side ? loan.to : loan.from) === title);
      const start = y;
      y += own.reduce((sum, loan) => sum + size(loan.bytes), 0) + gap;
      return [title, { start, next: start, height: y - gap - start }];
    }));
  });
  const made = [];
  const [a, b] = [edge + 8, width - edge - 8];
  for (const loan of loans) {
    const [from, to] = [offsets[0][loan.from], offsets[1][loan.to]];
    const [y1, y2, h] = [from.next, to.next, size(loan.bytes)];
    [from.next, to.next] = [y1 + h, y2 + h];
    const middle = (a + b) / 2;
    const d = `M${a} ${round(y1)}C${middle} ${round(y1)} ${middle} ${round(y2)} ${b} ${round(y2)}V${round(y2 + h)}`
      + `C${middle} ${round(y2 + h)} ${middle} ${round(y1 + h)} ${a} ${round(y1 + h)}Z`;
    made.push(shape("path", { class: `flow c${colourOf(loan.from)}`, d }));
  }
  sides.forEach((titles, side) => titles.forEach((title) => {
    const { start, height: own } = offsets[side][title];
    made.push(shape("rect", { class: `node c${colourOf(title)}`, x: side ? b : a - 4, width: 4, y: round(start), height: round(own) }));
    made.push(shape("text", { class: "label", x: side ? b + 10 : a - 10, y: round(start + own / 2 + 4), "text-anchor": side ? "start" : "end" }, name(title).slice(0, 13)));
  }));
  return picture("flows", width, height, ...made);
}

// Moves through time, a row for each tenant; a mark is as large as what moved.
export function timeline(moves, titles, colourOf, name, now, length, width) {
  const row = 26;
  const left = Math.min(120, width / 3.6);
  const height = row * titles.length + 22;
  const right = width - 10;
  const { x, marks } = timeAxis(left, right, now, length);
  const shown = moves.filter((move) => now - move.at_unix_ms <= length && titles.includes(move.title));
  const most = Math.max(1, ...shown.map((move) => move.bytes));
  // Many marks in a row are small ones.
  const largest = Math.min(10, Math.max(4, ((right - left) * titles.length) / Math.max(1, shown.length)));
  const made = titles.flatMap((title, at) => {
    const y = row * at + row / 2;
    return [
      shape("line", { class: "grid", x1: left, x2: width, y1: y, y2: y }),
      shape("text", { class: "label", x: left - 8, y: y + 4, "text-anchor": "end" }, name(title).slice(0, 15)),
    ];
  });
  for (const move of shown) {
    const at = titles.indexOf(move.title);
    const r = round(2 + (largest - 2) * Math.sqrt(move.bytes / most));
    const mark = shape("circle", { class: `move c${colourOf(move.title)}`, cx: x(move.at_unix_ms), cy: row * at + row / 2, r });
    mark.append(shape("title", {}, [times(move), move.detail].filter(Boolean).join(": ")));
    made.push(mark);
  }
  for (const mark of marks) made.push(timeText(mark, left, height - 5));
  made.push(nowText(right, height - 5));
  return picture("timeline", width, height, ...made);
}
