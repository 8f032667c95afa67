// The parts that views are made of. Names come from outside: they only ever become text.
import * as chart from "./charts.js";
import { age, bytes, byTrouble, counted, duration, percent, rate, times } from "./words.js";

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

// Makes `old` what `fresh` is, and keeps what is the same: the focus and the place of a reader stay.
export function morph(old, fresh) {
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  const keyed = new Map([...old.children].filter((child) => child.dataset.key).map((child) => [child.dataset.key, child]));
  let next = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const own = child.dataset?.key ? keyed.get(child.dataset.key) : next;
    if (own && own.nodeName === child.nodeName && own.dataset?.key === child.dataset?.key) {
      if (own === next) next = next.nextSibling;
      else old.insertBefore(own, next);
      if (own.nodeType === Node.ELEMENT_NODE) morph(own, child);
      else if (own.data !== child.data) own.data = child.data;
    } else {
      old.insertBefore(child, next);
    }
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

export function table(caption, heads, rows, hidden = false) {
  const head = el("tr", {}, heads.map(([text, kind]) => el("th", { scope: "col", class: kind }, text)));
  const body = rows.map((cells) => el("tr", {}, cells.map((cell, at) =>
    el(at ? "td" : "th", { scope: at ? null : "row", class: heads[at][1] }, cell))));
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    el("table", {}, el("caption", { class: hidden ? "hidden" : null }, caption), el("thead", {}, head), el("tbody", {}, body)));
}

function swatch(colour) {
  return el("i", { class: `swatch c${colour}`, "aria-hidden": "true" });
}

export function reasons(list, name = "reasons") {
  const shown = [...list].sort(byTrouble);
  return shown.length ? el("ul", { class: name }, shown.map((one) => el("li", { class: one.level }, one.text))) : null;
}

export function troubles(tenant) {
  return tenant.reasons.filter((one) => one.level !== "fine");
}

const OWNERS = ["embeddings, head, norms", "resident layers", "slots of moving layers", "KV cache", "activations", "staging", "promised to another tenant", "free"];
const LAYERS = { r: "resident", m: "moving", l: "loading", a: "absent" };

function layersText(letters) {
  const count = (letter) => [...letters].filter((one) => one === letter).length;
  const parts = Object.keys(LAYERS).filter(count).map((letter) => `${count(letter)} ${LAYERS[letter]}`);
  return `${counted(letters.length, "layer")}: ${parts.join(", ")}`;
}

function objective(one) {
  const [kind, sign] = one.missed ? ["missed", "✗ missed:"] : ["met", "✓ met:"];
  const text = ` ${percent(one.attained_permille)} of ${one.name}s came within ${one.within} in the last ${age(one.window_seconds * 1e3)} `;
  const promised = el("span", { class: "quiet" }, `(${percent(one.promised_permille, one.promised_permille % 10 ? 1 : 0)} promised)`);
  return el("li", { class: kind }, el("strong", {}, sign), text, promised);
}

// A figure now and through time.
function measure(label, value, past, column, now, size, words, limit, missed) {
  const values = past?.tenants[size.title]?.[column] ?? [];
  const known = values.filter((one) => one !== null);
  const range = known.length ? `, ${words(Math.min(...known))} to ${words(Math.max(...known))} in ${age(chart.span(past, now))}` : "";
  return el("div", { class: missed ? "measure missed" : "measure" }, el("dt", {}, label),
    el("dd", {}, el("span", { class: "value" }, value), el("span", { class: "hidden" }, range),
      chart.spark(past, values, now, size.width, size.height, limit)));
}

function measures(tenant, past, now, size) {
  const missed = (name) => tenant.objectives.some((one) => one.name === name && one.missed);
  const limit = (name) => tenant.objectives.find((one) => one.name === name)?.limit_ns / 1e5 || undefined;
  const tenths = (value) => duration(value / 10);
  const ns = (value) => (value === null ? "–" : duration(value / 1e6));
  const kv = tenant.kv_used_permille !== null ? `${percent(tenant.kv_used_permille, 0)} of ${bytes(tenant.kv_total_bytes)}` : "–";
  return el("dl", { class: "measures" },
    measure("tokens/s", rate(tenant.tokens_per_s), past, "tokens", now, size, rate),
    measure("first token P99", ns(tenant.ttft_ns), past, "ttft", now, size, tenths, limit("first token"), missed("first token")),
    measure("between tokens P99", ns(tenant.tbt_ns), past, "tbt", now, size, tenths, limit("later token"), missed("later token")),
    measure("KV used", kv, past, "kv_used", now, size, (value) => percent(value, 0), 1000));
}

// One tenant. `large` = it is the view, and says all that `explain` says.
export function card(tenant, past, now, name, href, large, width) {
  const inner = Math.max(120, width - 34);
  const across = large && width > 900 ? Math.floor((inner - 24) / 2) : inner;
  const size = { title: tenant.title, width: large ? across : Math.max(60, Math.floor(inner * (inner < 320 ? 0.34 : 0.42))), height: large ? 56 : 22 };
  const requests = tenant.answers ? `${tenant.running} running, ${tenant.waiting} waiting` : "";
  const held = tenant.owners.slice(0, 7).reduce((sum, one) => sum + one, 0);
  const memory = tenant.answers ? `holds ${bytes(held)} of ${bytes(tenant.capacity_bytes)}` : "";
  const letters = tenant.layers;
  return el("article", { class: `tenant ${tenant.level}${large ? " large" : ""}`, "data-key": tenant.title, "aria-label": tenant.title },
    large ? null : el("h3", {}, swatch(tenant.colour), el("a", { href }, name(tenant.title))),
    el("p", { class: "state" }, el("strong", {}, tenant.phase || "no answer"), requests && ` · ${requests}`, memory && ` · ${memory}`),
    tenant.objectives.length && !large ? el("ul", { class: "objectives" }, tenant.objectives.map(objective)) : null,
    reasons(large ? tenant.reasons.filter((one) => one.kind !== "phase" || one.level !== "fine") : tenant.shown_reasons.map((at) => tenant.reasons[at])),
    tenant.answers ? measures(tenant, past, now, size) : null,
    letters ? el("div", { class: `strip c${tenant.colour}` }, el("p", {}, layersText(letters)), chart.layers(letters, inner)) : null,
    large && tenant.answers ? table("Device memory by owner", [["owner", ""], ["size", "number"]], OWNERS.map((owner, at) => [owner, bytes(tenant.owners[at])])) : null);
}

// Who holds what now, in words.
function memoryTable(gpu, name) {
  const sizes = gpu.tenants.map((tenant) => {
    const [global, layers, slots, kv, ...rest] = tenant.owners;
    const other = rest[0] + rest[1] + rest[2];
    return [tenant, [global + layers + slots, kv, other]];
  });
  const mib = (count) => (count / 2 ** 20).toFixed(count && count < 100 * 2 ** 20 ? 1 : 0);
  const rows = sizes.map(([tenant, parts]) => [name(tenant.title), ...parts.map(mib), mib(parts.reduce((a, b) => a + b, 0))]);
  const heads = [["tenant", ""], ["weights", "number"], ["KV", "number"], ["other", "number"], ["all", "number"]];
  return table("Memory now, MiB", heads, rows);
}

// The bar of owners through time.
export function memoryFigure(gpu, past, now, name, width) {
  const kinds = el("li", { class: "kinds" }, ...chart.KINDS.map((kind) => el("span", {}, el("i", { class: `swatch ink ${kind}`, "aria-hidden": "true" }), kind === "kv" ? "KV" : kind)));
  return el("figure", { class: "chart" },
    el("figcaption", {}, `Memory by owner, ${bytes(gpu.capacity_bytes)}, the last ${age(chart.span(past, now))}`),
    past ? chart.memory(gpu, past, now, width, bytes, name) : null,
    el("ul", { class: "legend" }, gpu.tenants.map((tenant) => el("li", {}, swatch(tenant.colour), name(tenant.title))),
      el("li", {}, el("i", { class: "swatch unowned", "aria-hidden": "true" }), "free"), kinds));
}

// Memory now, and who lends it to whom; `only` = loans alone.
export function loans(gpu, name, width, only) {
  const colours = new Map(gpu.tenants.map((tenant) => [tenant.title, tenant.colour]));
  const colourOf = (title) => colours.get(title) ?? 0;
  const list = gpu.loans.map((loan) => el("li", {}, `${name(loan.from)} lends ${bytes(loan.bytes)} to ${name(loan.to)}`));
  return el("section", { class: "loans" }, only ? null : memoryTable(gpu, name), el("h3", {}, "Loans"),
    gpu.loans.length ? chart.flows(gpu.loans, colourOf, name, width) : null,
    gpu.loans.length ? el("ul", {}, list) : el("p", { class: "quiet" }, "No tenant lends memory to another."));
}

const SHOWN_MOVES = 8;

export function moves(gpu, past, now, name, width, only) {
  const titles = gpu.tenants.map((tenant) => tenant.title).filter((title) => !only || title === only);
  const colours = new Map(gpu.tenants.map((tenant) => [tenant.title, tenant.colour]));
  const all = (past?.moves ?? []).filter((move) => titles.includes(move.title) && now - move.at_unix_ms < chart.SPAN_MS);
  const last = all.slice(-SHOWN_MOVES).reverse();
  const detailed = last.some((move) => move.detail);
  const rows = last.map((move) => [
    `${age(now - move.at_unix_ms)} ago`, name(move.title), times(move), ...(detailed ? [move.detail] : []), move.bytes ? bytes(move.bytes) : "–",
  ]);
  const heads = [["when", ""], ["tenant", ""], ["reason", ""], ...(detailed ? [["what", "wide"]] : []), ["size", "number"]];
  return el("section", { class: "moves" }, el("h3", {}, "Moves"),
    all.length ? chart.timeline(all, titles, (title) => colours.get(title) ?? 0, name, now, chart.span(past, now), width) : null,
    all.length ? table("The last moves of memory", heads, rows, true) : el("p", { class: "quiet" }, `No memory moved in the last ${age(chart.span(past, now))}.`));
}
