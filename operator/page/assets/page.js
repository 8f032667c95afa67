// The live page: reads the server's stream and draws it anew after every message.
import { card, el, loans, memoryFigure, morph, moves, reasons, troubles } from "./parts.js";
import { SPAN_MS } from "./charts.js";
import { age, byTrouble, counted, percent, rate, shortNames } from "./words.js";

const RETRY_MS = 3000;
const main = document.getElementById("main");
const link = document.getElementById("link");

const known = { list: null, gpus: new Map(), details: new Map(), pasts: new Map(), problem: "", note: "Connecting…", filter: "", sort: "trouble" };
let source = null;
let asked = null;

const place = () => new URLSearchParams(location.hash.slice(1));
const href = (parts) => `#${new URLSearchParams(parts)}`;

// A string in a column is how often the value before it repeats.
function unrolled(column) {
  const values = [];
  for (const one of column) {
    if (typeof one !== "string") values.push(one);
    else for (let left = Number(one); left > 0; left--) values.push(values.at(-1));
  }
  return values;
}

function onHistory(part) {
  const past = known.pasts.get(part.key) ?? { at: [], tenants: {}, moves: [] };
  let time = part.start_unix_ms;
  const before = past.at.length;
  for (const after of unrolled(part.after_ms)) past.at.push((time += after));
  const added = past.at.length - before;
  const columns = Object.keys(Object.values(part.tenants)[0] ?? Object.values(past.tenants)[0] ?? {});
  for (const title of new Set([...Object.keys(past.tenants), ...Object.keys(part.tenants)])) {
    const own = (past.tenants[title] ??= Object.fromEntries(columns.map((name) => [name, Array(before).fill(null)])));
    for (const name of columns) own[name].push(...(part.tenants[title] ? unrolled(part.tenants[title][name]) : Array(added).fill(null)));
  }
  // A move comes again when its size has changed.
  const again = new Set(part.moves.map((one) => one.number));
  past.moves = [...past.moves.filter((one) => !again.has(one.number)), ...part.moves].sort((a, b) => a.at_unix_ms - b.at_unix_ms);
  trim(past);
  known.pasts.set(part.key, past);
}

function trim(past) {
  const now = past.at.at(-1) ?? 0;
  const old = past.at.findIndex((at) => now - at <= SPAN_MS);
  if (old > 0) {
    past.at.splice(0, old);
    for (const columns of Object.values(past.tenants)) for (const column of Object.values(columns)) column.splice(0, old);
  }
  for (const [title, columns] of Object.entries(past.tenants)) if (columns.weights.every((one) => one === null)) delete past.tenants[title];
  past.moves = past.moves.filter((move) => now - move.at_unix_ms < SPAN_MS);
}

function onList(list) {
  if (list.all) known.gpus.clear();
  for (const gpu of list.gpus) known.gpus.set(gpu.key, gpu);
  known.list = list;
  [known.problem, known.note] = ["", list.note];
  // What is gone, or is not sent any more, must not look as if it were of now.
  const sent = (key) => known.gpus.has(key) && (list.few || key === asked);
  for (const kept of [known.details, known.pasts]) for (const key of [...kept.keys()]) if (!sent(key)) kept.delete(key);
  if (wanted() !== asked) connect();
}

// The GPU to ask for; of few, all are sent. Of more, the page shows one at a time, below a map of all.
const wanted = () => (known.list?.few ? null : place().get("gpu"));

function connect() {
  asked = wanted();
  source?.close();
  known.pasts.clear();
  known.details.clear();
  source = new EventSource(`v1/page/events${asked ? `?gpu=${encodeURIComponent(asked)}` : ""}`);
  const take = (kind, act) => source.addEventListener(kind, (event) => {
    act(JSON.parse(event.data));
    soon();
  });
  take("list", onList);
  take("history", onHistory);
  take("gpu", (gpu) => known.details.set(gpu.key, gpu));
  source.addEventListener("open", () => {
    // The server sends the past anew.
    known.pasts.clear();
  });
  const own = source;
  own.addEventListener("error", async () => {
    const closed = own.readyState === EventSource.CLOSED;
    if (closed) setTimeout(() => own === source && connect(), RETRY_MS);
    const why = closed && (await refusal());
    if (own !== source) return;
    known.problem = why || "The server does not answer. The page shows old data.";
    soon();
  });
}

// Why the server takes no viewer, which an event source does not read.
async function refusal() {
  const answer = await fetch("v1/page").catch(() => null);
  return answer?.status === 503 && answer.text();
}

let drawing = false;
function soon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    draw();
  });
}

function gpuSection(gpu, now, width) {
  const past = known.pasts.get(gpu.key);
  const name = shortNames(gpu.tenants.map((tenant) => tenant.title));
  const wide = width > 1000;
  const inner = width - 2;
  const where = [gpu.pool && `pool ${gpu.pool}`, gpu.node && `node ${gpu.node}`, counted(gpu.tenants.length, "tenant")].filter(Boolean).join(" · ");
  const late = gpu.read_unix_ms && now - gpu.read_unix_ms > 5000 ? ` · read ${age(now - gpu.read_unix_ms)} ago` : "";
  const columns = Math.max(1, Math.floor((inner + 16) / (340 + 16)));
  const across = Math.min(columns, Math.max(1, gpu.tenants.length));
  const each = (inner - 16 * (across - 1)) / across;
  const link = (tenant) => href({ gpu: gpu.key, tenant: tenant.title });
  const cards = gpu.tenants.map((tenant) => card(tenant, past, now, name, link(tenant), false, each));
  return el("section", { class: "gpu", "data-key": gpu.key, "aria-label": `GPU ${gpu.name}` },
    el("h2", { tabindex: "-1" }, `GPU ${gpu.name} `, el("small", {}, where + late)),
    reasons(gpu.reasons),
    el("div", { class: "row" }, memoryFigure(gpu, past, now, name, wide ? Math.floor(inner * 0.7) - 8 : inner),
      loans(gpu, name, wide ? Math.floor(inner * 0.3) - 24 : inner)),
    el("h3", { class: "hidden" }, "Tenants"),
    el("div", { class: `tenants across${across}` }, cards),
    moves(gpu, past, now, name, inner));
}

function tenantView(gpu, title, now, width) {
  const tenant = gpu.tenants.find((one) => one.title === title);
  const up = el("p", {}, el("a", { href: known.list.few ? "#" : href({ gpu: gpu.key }) }, `← GPU ${gpu.name}`));
  if (!tenant) return el("section", {}, up, el("p", {}, `${title} has no slot on this GPU.`));
  const past = known.pasts.get(gpu.key);
  const name = shortNames([title]);
  const own = { ...gpu, loans: gpu.loans.filter((loan) => loan.from === title || loan.to === title) };
  return el("section", { class: "view", "data-key": title, "aria-label": `Tenant ${title}` }, up,
    el("h2", { tabindex: "-1" }, el("i", { class: `swatch c${tenant.colour}`, "aria-hidden": "true" }), `${name(title)} `, el("small", {}, title.split("/")[0])),
    card(tenant, past, now, name, null, true, width),
    loans(own, shortNames(gpu.tenants.map((one) => one.title)), Math.min(640, width), true),
    moves(gpu, past, now, name, width, title));
}

const SORTS = {
  trouble: ["problems first", byTrouble],
  memory: ["memory used", (a, b) => b.used_permille - a.used_permille],
  tokens: ["tokens per second", (a, b) => (b.tokens_per_s ?? -1) - (a.tokens_per_s ?? -1)],
  name: ["name", () => 0],
};

function cellText(gpu) {
  const level = { fine: "fine", watch: "to check", bad: "with problems" }[gpu.level];
  const speed = gpu.tokens_per_s === null ? "" : `, ${rate(gpu.tokens_per_s)} tokens/s`;
  return `${gpu.key}: ${level}, ${counted(gpu.titles.length, "tenant")}, ${percent(gpu.used_permille, 0)} used${speed}`;
}

function pool(chosen) {
  const words = known.filter.trim();
  const fits = (gpu) => [gpu.key, gpu.pool, gpu.node ?? "", ...gpu.titles].some((text) => text.includes(words));
  const shown = [...known.gpus.values()].sort((a, b) => a.key.localeCompare(b.key, "en", { numeric: true })).filter(fits);
  shown.sort(SORTS[known.sort][1]);
  const count = (level) => shown.filter((gpu) => gpu.level === level).length;
  const focused = document.activeElement?.closest?.(".map li")?.dataset.key;
  const stop = [focused, chosen, shown[0]?.key].find((key) => shown.some((gpu) => gpu.key === key));
  const cells = shown.map((gpu) => el("li", { "data-key": gpu.key },
    el("a", { class: `cell ${gpu.level} u${Math.min(9, Math.floor(gpu.used_permille / 100))}`, href: href({ gpu: gpu.key }), title: cellText(gpu),
      "aria-label": cellText(gpu), "aria-current": gpu.key === chosen ? "true" : null, tabindex: gpu.key === stop ? "0" : "-1" },
    gpu.level === "bad" ? "×" : gpu.level === "watch" ? "!" : "")));
  const worst = shown.filter((gpu) => gpu.level === "bad").slice(0, 6);
  const lines = worst.map((gpu) => el("li", { class: "bad" }, el("a", { href: href({ gpu: gpu.key }) }, gpu.key), ` ${gpu.worst}`));
  const options = Object.entries(SORTS).map(([key, [text]]) => el("option", { value: key }, text));
  const more = count("bad") - worst.length;
  return el("section", { class: "pool", "aria-label": "All GPUs" },
    el("h2", { tabindex: "-1" }, counted(shown.length, "GPU"), " ", el("small", {}, `${count("bad")} with problems · ${count("watch")} to check · ${count("fine")} fine`)),
    el("p", { class: "controls" },
      el("label", {}, "Find ", el("input", { id: "filter", type: "search", autocomplete: "off", placeholder: "GPU, pool, node or tenant" })),
      el("label", {}, "Sort ", el("select", { id: "sort" }, options))),
    lines.length ? el("ul", { class: "reasons" }, lines, more > 0 ? el("li", { class: "bad" }, `${more} more, marked × below`) : null) : null,
    el("p", { class: "quiet" }, "× with problems, ! to check; the stronger the colour, the more memory is used."),
    el("ul", { class: "map", "aria-label": `GPUs, ${SORTS[known.sort][0]}; arrow keys move` }, cells));
}

// What is wrong, without its figures: what is announced when it changes.
function spoken() {
  const found = new Map();
  if (known.problem) found.set("link", known.problem);
  for (const gpu of known.details.values()) {
    for (const one of gpu.reasons) if (one.level !== "fine") found.set(`${gpu.key} ${one.kind}`, one.text);
    for (const tenant of gpu.tenants) for (const one of troubles(tenant)) if (one.level === "bad") found.set(`${tenant.title} ${one.kind}`, `${tenant.title}: ${one.text}`);
  }
  return found;
}

let announced = new Map();
function announce() {
  const now = spoken();
  const fresh = [...now].filter(([key]) => !announced.has(key)).map(([, text]) => text);
  const over = announced.size > 0 && now.size === 0;
  if (fresh.length || over) document.getElementById("announce").textContent = fresh.join(" ") || "No problems any more.";
  announced = now;
}

let view = "";
function draw() {
  const list = known.list;
  document.body.classList.toggle("stale", Boolean(known.problem));
  link.textContent = known.problem || known.note || `${list.source} · ${list.version} · ${new Date(list.at_unix_ms).toLocaleTimeString("en-GB")}`;
  link.className = known.problem ? "bad" : known.note ? "" : "live";
  if (!list) return;
  const [chosen, title] = [place().get("gpu"), place().get("tenant")];
  const width = main.clientWidth;
  const fresh = el("main", { id: "main", tabindex: "-1" });
  const shown = [...known.details.values()].filter((gpu) => !chosen || gpu.key === chosen).sort((a, b) => a.key.localeCompare(b.key, "en", { numeric: true }));
  if (!list.few && !title) fresh.append(pool(chosen));
  for (const gpu of shown) fresh.append(title ? tenantView(gpu, title, list.at_unix_ms, width) : gpuSection(gpu, list.at_unix_ms, width));
  if (!list.count && !known.note) fresh.append(el("p", { class: "quiet" }, "No GPU has a tenant."));
  if (chosen && list.count && !known.gpus.has(chosen)) fresh.append(el("p", { class: "quiet" }, `There is no GPU ${chosen}.`));
  morph(main, fresh);
  announce();
  const now = `${chosen} ${title}`;
  if (view !== now && (shown.length || !chosen)) {
    if (view) main.querySelector(title ? ".view h2" : chosen ? ".gpu h2" : "h2")?.focus();
    view = now;
    document.title = [title ?? chosen, "Sluice"].filter(Boolean).join(" · ");
  }
}

main.addEventListener("input", (event) => {
  if (event.target.id === "filter") known.filter = event.target.value;
  if (event.target.id === "sort") known.sort = event.target.value;
  soon();
});

// Arrow keys go over the map, by rows as it is laid out.
main.addEventListener("keydown", (event) => {
  const cell = event.target.closest?.(".cell");
  if (!cell) return;
  const cells = [...main.querySelectorAll(".cell")];
  const at = cells.indexOf(cell);
  const top = cells[0].offsetTop;
  const across = Math.max(1, cells.findIndex((one) => one.offsetTop > top));
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -at, End: cells.length - 1 - at };
  const next = cells[at + (steps[event.key] ?? NaN)];
  if (!next) return;
  event.preventDefault();
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});

addEventListener("hashchange", () => {
  if (wanted() !== asked) connect();
  soon();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
new ResizeObserver(soon).observe(document.documentElement);
connect();
