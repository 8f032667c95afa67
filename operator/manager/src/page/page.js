// What the leader knows of every GPU, drawn anew every few seconds. Names come from the cluster: they only ever become text.
"use strict";

const EVERY_MS = 5000;
const OWNERS = [
  ["weights_global_bytes", "global", "embeddings, head, norms"],
  ["weights_layers_bytes", "weights", "resident layers"],
  ["slots_bytes", "slots", "slots of moving layers"],
  ["kv_bytes", "kv", "KV"],
  ["activation_bytes", "activations", "activations"],
  ["staging_bytes", "staging", "staging"],
  ["earmarked_bytes", "earmarked", "promised to a neighbour"],
  ["free_bytes", "free", "free"],
];
const LAYERS = { resident: "weights", moving: "slots", loading: "activations", "lent away": "absent" };

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; count >= 1024 && at < units.length - 1; at++) count /= 1024;
  return `${count.toFixed(at > 0 && count < 100 ? 1 : 0)}\u00a0${units[at]}`;
}

function age(now, then) {
  const seconds = Math.max(0, Math.round((now - then) / 1000));
  if (seconds < 120) return `${seconds} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

function memoryMap(state, most) {
  const map = element("div", "map");
  map.style.width = `${(100 * state.memory.capacity_bytes) / Math.max(1, most)}%`;
  for (const [field, colour, name] of OWNERS) {
    const held = state.memory.owners[field];
    if (!held) continue;
    const part = element("i", colour);
    part.style.flex = `${held} 0 0`;
    part.title = `${name}: ${bytes(held)}`;
    map.append(part);
  }
  const layers = element("div", "layers");
  // Who lends whole layers lends its last ones, so that it wakes front first.
  const here = state.layers.length - state.activity.absent_layers;
  state.layers.forEach((layer, index) => {
    const told = typeof layer === "string" ? layer : Object.keys(layer)[0];
    const kind = index < here ? told.toLowerCase() : "lent away";
    const cell = element("i", LAYERS[kind] ?? "absent");
    cell.title = `layer ${index}: ${kind}`;
    layers.append(cell);
  });
  return element("div", "memory", map, layers);
}

function percentiles(p) {
  if (!p.samples) return "–";
  return `${(p.p50_ns / 1e6).toFixed(1)} / ${(p.p99_ns / 1e6).toFixed(1)}`;
}

function attained(permille) {
  return permille === null || permille === undefined ? "–" : `${(permille / 10).toFixed(1)}\u00a0%`;
}

// So long after it a hang is told.
const HANG_MS = 600000;

// What hangs or hung of a tenant, and whom it waits for: words, and whether it lasts.
function hangs(state, now) {
  const told = [];
  const hang = state.engine.last_hang;
  if (hang && (hang.alive || now - hang.at_unix_ms < HANG_MS)) {
    const done = hang.alive ? "it still lives" : "it was killed";
    told.push([`engine hung ${age(now, hang.at_unix_ms)} ago (${hang.during}, ${hang.waited_ms} ms without progress): ${done}`, hang.alive]);
  }
  const turn = state.neighbourhood?.turn;
  const taken = turn?.last_takeover;
  if (taken && now - taken.at_unix_ms < HANG_MS) {
    told.push([`took the turn from ${taken.from} ${age(now, taken.at_unix_ms)} ago, ${taken.overdue_ms} ms past its deadline`, false]);
  }
  return told;
}

// The holder of a GPU's turn that is past its deadline, as those tell who answer; it may not answer itself.
function late(states) {
  const turns = states.flatMap((state) => (state.neighbourhood?.turn?.holder_overdue_ms ? [state.neighbourhood.turn] : []));
  turns.sort((a, b) => b.holder_overdue_ms - a.holder_overdue_ms);
  return turns.length ? `${turns[0].holder} holds the turn and is ${turns[0].holder_overdue_ms} ms past its deadline` : null;
}

// A sidecar of an older version does not count them.
function overdue(slo) {
  const count = (slo.ttft_overdue ?? 0) + (slo.tbt_overdue ?? 0);
  return count ? element("div", "bad", `${count} overdue`) : "";
}

function tenantRow(state, now, most) {
  const idle = state.idle_since_unix_ms ? `idle for ${age(now, state.idle_since_unix_ms)}` : "";
  const failure = state.engine.failure ? element("div", "bad", state.engine.failure) : "";
  const waits = state.phase === "Loading" ? state.neighbourhood?.waits_for : null;
  const place = state.neighbourhood;
  const lent = place ? `${bytes(place.borrowed_bytes)} / ${bytes(place.lent_bytes)}` : "–";
  const cells = [
    element("td", "", element("strong", "", state.tenant.name), element("div", "", `${state.policy}`)),
    element("td", "", state.phase, element("div", "", idle), waits ? element("div", "bad", `waits for ${waits}`) : "",
      ...hangs(state, now).map(([words, lasts]) => element("div", lasts ? "bad" : "", words)), failure),
    element("td", "", memoryMap(state, most)),
    element("td", "", bytes(state.memory.capacity_bytes)),
    element("td", "", lent),
    element("td", "", `${state.remap.alpha} / ${state.remap.cap_layers}`),
    element("td", "", `${state.queue.running} + ${state.queue.waiting}`),
    element("td", "", percentiles(state.figures.delivered_tbt)),
    element("td", "", attained(state.slo.tbt_attained_permille), overdue(state.slo)),
    element("td", "", attained(state.slo.ttft_attained_permille)),
  ];
  return element("tr", "", ...cells);
}

function lostRow(lost) {
  const words = element("td", "bad", `no answer: ${lost.reason}`);
  words.colSpan = 9;
  return element("tr", "", element("td", "", element("strong", "", lost.name)), words);
}

const HEADS = ["tenant", "phase", "memory and layers", "holds", "borrowed / lent", "remapped / cap",
  "running + waiting", "ms between tokens p50 / p99", "in time", "first in time"];

function moves(states, now) {
  const all = states.flatMap((state) => state.moves.map((move) => [state.tenant.name, move]));
  all.sort((a, b) => b[1].at_unix_ms - a[1].at_unix_ms);
  const lines = all.slice(0, 8).map(([name, move]) =>
    element("li", "", `${age(now, move.at_unix_ms)} ago  ${name}: ${move.reason.replaceAll("_", " ")}, ${move.detail} (${bytes(move.bytes)})`));
  return element("ul", "moves", ...lines);
}

function gpuSection(gpu, now) {
  const states = gpu.tenants.flatMap((told) => (told.State ? [told.State] : []));
  const most = Math.max(...states.map((state) => state.memory.capacity_bytes), 1);
  const read = gpu.read_unix_ms ? `read ${age(now, gpu.read_unix_ms)} ago` : "not read yet";
  const about = `pool ${gpu.pool}, namespace ${gpu.namespace}, node ${gpu.node ?? "not known yet"}, ${read}`;
  const section = element("section", "", element("h2", "", gpu.name, " ", element("small", "", about)));
  if (gpu.problem) section.append(element("p", "bad", gpu.problem));
  const holder = late(states);
  if (holder) section.append(element("p", "bad", holder));
  const head = element("tr", "", ...HEADS.map((name) => element("th", "", name)));
  const rows = gpu.tenants.map((told) => (told.State ? tenantRow(told.State, now, most) : lostRow(told.Unreachable)));
  const table = element("table", "", element("thead", "", head), element("tbody", "", ...rows));
  if (rows.length) section.append(element("div", "scroll", table), moves(states, now));
  return section;
}

function wanted(gpu, filter) {
  const names = gpu.tenants.map((told) => (told.State ? told.State.tenant.name : told.Unreachable.name));
  return [gpu.name, gpu.pool, gpu.namespace, gpu.node ?? "", ...names].some((word) => word.includes(filter));
}

function counted(gpus, rest) {
  return `${gpus} ${gpus === 1 ? "GPU" : "GPUs"} ${rest}`.trim();
}

let last = null;

function draw() {
  if (!last) return;
  const filter = document.getElementById("filter").value.trim();
  const gpus = last.gpus.filter((gpu) => wanted(gpu, filter));
  document.getElementById("gpus").replaceChildren(...gpus.map((gpu) => gpuSection(gpu, last.at_unix_ms)));
  const shown = gpus.length === last.gpus.length ? counted(gpus.length, "with tenants") : `${gpus.length} of ${counted(last.gpus.length, "")}`;
  const time = new Date(last.at_unix_ms).toLocaleTimeString();
  document.getElementById("now").textContent = `${shown}, ${time}, operator ${last.operator}`;
}

async function look() {
  try {
    const answer = await fetch("v1/overview");
    if (!answer.ok) throw new Error(await answer.text());
    last = await answer.json();
    draw();
  } catch (error) {
    document.getElementById("now").textContent = `The leader does not answer: ${error.message}`;
  }
  setTimeout(look, EVERY_MS);
}

for (const [, colour, name] of OWNERS) {
  document.getElementById("legend").append(element("span", "", element("i", colour), name));
}
document.getElementById("filter").addEventListener("input", draw);
look();
