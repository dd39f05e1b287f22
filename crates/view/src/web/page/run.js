// The shown run: its numbers, its devices, and its lanes in words.

/** Rows of the table of devices, and of the lanes in words. */
const DEVICES_A_PAGE = 20;
const MAX_LANES_IN_WORDS = 40;
const MAX_REASONS = 20;

/** How a run stands: the tone of its chip, its name, and the state of its bars. */
function standing(run, isGone) {
  const { ended } = run.summary;
  if (ended === null) {
    if (isGone) return { tone: "bad", name: "program has ended", state: "failed" };
    return { tone: "ok", name: run.summary.kind === "queue" ? "serving" : "running", state: "running" };
  }
  if (ended.error === null) return { tone: "ok", name: "finished", state: "done" };
  const isCancelled = /cancel/i.test(ended.error);
  return { tone: isCancelled ? "warn" : "bad", name: isCancelled ? "cancelled" : "failed", state: "failed" };
}

/** The part of a run that is done, or null if nobody knows how much there is. */
function progressOf({ items, done, ended }) {
  if (items !== null && items > 0) return done / items;
  return ended !== null && ended.error === null ? 1 : null;
}

function sumOf(devices, count) {
  return devices.reduce((sum, { totals }) => sum + count(totals), 0);
}

const rescuesOf = (totals) => totals.speculative + totals.steals;

function showSummary(run, program) {
  const { summary, devices } = run;
  const { tone, name, state } = standing(run, program.isGone);
  setText(byId("task"), summary.task);
  const kind = { map: "map", stream: "stream", queue: "queue" }[summary.kind] ?? summary.kind;
  const predicted = summary.predicted_s === null ? "" : `, predicted ${time(summary.predicted_s)}`;
  setText(byId("about"), `${kind} ${summary.id} of ${program.name} (${program.pid}), ${summary.strategy}, began at ${timeOfDay(summary.began_unix_s)}${predicted}`);
  const chip = byId("run-state");
  setText(chip, name);
  setAttribute(chip, "data-tone", tone);
  showTraceLink(byId("trace"), program, summary);

  const done = progressOf(summary);
  const bar = byId("progress");
  if (done === null) bar.removeAttribute("value");
  else bar.value = done;
  setAttribute(bar, "data-state", state);
  setText(byId("progress-text"), done === null ? "" : percent(Math.floor(done * 1000) / 1000));
  showNote(byId("waiting"), summary.waiting_for && `Waiting for ${summary.waiting_for}`);
  showNote(byId("run-error"), summary.ended?.error);

  const { queue } = summary;
  setText(byId("items"), short(summary.done));
  setText(byId("items-of"), queue ? `${count(queue.queued)} waiting, ${count(queue.outstanding)} open`
    : summary.items === null ? "of a stream" : `of ${count(summary.items)}`);
  setText(byId("rate"), rate(summary.items_per_second));
  const now = devices.reduce((sum, { throughput }) => sum + (throughput.at(-1) ?? 0), 0);
  setText(byId("rate-now"), run.isActive ? `now ${rate(now)}` : "of the whole run");
  setText(byId("left-name"), run.isActive ? "Time left" : "Took");
  setText(byId("left"), run.isActive ? time(summary.remaining_s) : time(summary.elapsed_s));
  setText(byId("elapsed"), run.isActive ? `${time(summary.elapsed_s)} so far` : `ended at ${timeOfDay(summary.ended.unix_s)}`);
  setText(byId("efficiency"), efficiency(summary.efficiency));
  setText(byId("bound"), guaranteed(summary.bound)
    ?? (run.isActive && summary.kind !== "queue" ? "so far; no bound yet" : "no bound"));
  const [inQuarantine, retired] = ["quarantined", "retired"].map((it) => sumOf(devices, ({ state }) => (state.is === it ? 1 : 0)));
  setText(byId("devices-count"), count(devices.length));
  const trouble = byId("devices-trouble");
  setText(trouble, [inQuarantine && `${inQuarantine} quarantined`, retired && `${retired} retired`].filter(Boolean).join(", ")
    || (run.leftOut.length > 0 ? `${run.leftOut.length} left out` : "all healthy"));
  setAttribute(trouble, "data-tone", inQuarantine + retired > 0 ? "warn" : null);
  setText(byId("rescues"), count(sumOf(devices, rescuesOf)));
  setText(byId("retries"), `${plural(sumOf(devices, (it) => it.retries), "failed chunk")}`);
}

function showNote(element, text) {
  element.hidden = !text;
  if (text) setText(element, text);
}

function showTraceLink(link, program, summary) {
  const isThere = !program.isGone;
  setAttribute(link, "href", isThere ? `/api/trace?pid=${program.pid}&run=${summary.id}` : null);
  setAttribute(link, "aria-disabled", isThere ? null : "true");
}

/** The devices that a filter lets through. */
function filtered(devices, { text, onlyTrouble }) {
  const wanted = text.trim().toLowerCase();
  return devices.filter(({ id, totals }) =>
    (wanted === "" || id.toLowerCase().includes(wanted)) && (!onlyTrouble || troubleOf(totals) > 0));
}

function troubleOf({ state, retries, quarantines, hangs }) {
  return { healthy: 0, quarantined: 1e9, retired: 2e9 }[state.is] + quarantines * 1e3 + retries + hangs;
}

const SORTS = {
  order: null,
  trouble: (a, b) => troubleOf(b.totals) - troubleOf(a.totals),
  share: (a, b) => b.totals.items - a.totals.items,
  rate: (a, b) => (b.totals.items_per_second ?? 0) - (a.totals.items_per_second ?? 0),
  name: (a, b) => a.id.localeCompare(b.id, "en", { numeric: true }),
};

/** The table of devices: one page of rows, however many devices there are. */
class DevicesTable {
  constructor() {
    this.page = 0;
    byId("page-before").addEventListener("click", () => this.turn(-1));
    byId("page-after").addEventListener("click", () => this.turn(1));
    this.onTurn = () => {};
  }

  turn(pages) {
    this.page += pages;
    this.onTurn();
  }

  show(run, devices, sort, now) {
    const sorted = SORTS[sort] ? [...devices].sort(SORTS[sort]) : devices;
    const pages = Math.max(1, Math.ceil(sorted.length / DEVICES_A_PAGE));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const first = this.page * DEVICES_A_PAGE;
    const shown = sorted.slice(first, first + DEVICES_A_PAGE);
    const all = sumOf(run.devices, ({ items }) => items);
    const most = Math.max(1e-9, ...shown.map(({ totals }) => totals.items / Math.max(1, all)));
    reuse(byId("devices"), shown, makeDeviceRow, (row, device) => updateDeviceRow(row, device, all, most, run, now));
    byId("pages").hidden = pages === 1;
    byId("page-before").disabled = this.page === 0;
    byId("page-after").disabled = this.page === pages - 1;
    setText(byId("page-text"), `${first + 1}–${first + shown.length} of ${count(sorted.length)}`);
    const failed = shown.filter(({ totals }) => totals.last_error !== null);
    showReasons("errors", failed.map(({ id, totals }) => ({ id, reason: withoutName(id, totals.last_error) })));
    showReasons("left-out", run.leftOut);
  }
}

/** Devices with a text for each: their last errors, or why they are left out. */
function showReasons(id, reasons) {
  const listed = reasons.slice(0, MAX_REASONS);
  if (reasons.length > listed.length) listed.push({ id: `${reasons.length - listed.length} more`, reason: "not listed here" });
  byId(id).hidden = listed.length === 0;
  reuse(byId(`${id}-list`), listed, () => make("li", {}, make("b"), make("span")), (item, { id: device, reason }) => {
    setText(item.children[0], device);
    setText(item.children[1], `: ${reason}`);
  });
}

const SVG = "http://www.w3.org/2000/svg";
const COUNT_COLUMNS = ["Items", "In hand", "Chunks", "Busy", "Dropped", "Retries", "Rescues"];

function makeDeviceRow() {
  const cell = (className, ...children) => make("td", { className, attributes: { role: "cell" } }, ...children);
  const svg = document.createElementNS(SVG, "svg");
  setAttribute(svg, "viewBox", "0 0 110 26");
  setAttribute(svg, "preserveAspectRatio", "none");
  setAttribute(svg, "aria-hidden", "true");
  for (const name of ["area", "stroke"]) {
    const path = document.createElementNS(SVG, "path");
    setAttribute(path, "class", name);
    svg.append(path);
  }
  const row = make("tr", { attributes: { role: "row" } },
    cell("name"),
    cell("health", make("span", { className: "chip" }), make("span", { className: "sub" })),
    cell("", make("div", { className: "share" }, make("div", { className: "track" }, make("i")), make("span"))),
    cell("", make("div", { className: "flow" })),
  );
  row.children[3].firstChild.append(svg, make("span"));
  for (const name of COUNT_COLUMNS) {
    const optional = ["Chunks", "Dropped"].includes(name) ? " optional" : "";
    const it = cell(`right${optional}`);
    it.dataset.name = name;
    row.append(it);
  }
  return row;
}

function updateDeviceRow(row, { id, totals, throughput }, all, most, run, now) {
  const [name, state, share, flow, ...counts] = row.children;
  setText(name, id);
  const { tone, words, more } = health(totals, run, now);
  setText(state.firstChild, words);
  setAttribute(state.firstChild, "data-tone", tone);
  setText(state.lastChild, more);
  const part = all > 0 ? totals.items / all : 0;
  share.firstChild.firstChild.firstChild.style.transform = `scaleX(${(part / most).toFixed(3)})`;
  setText(share.firstChild.lastChild, percent(part));
  drawSparkline(flow.firstChild.firstChild, throughput);
  setText(flow.firstChild.lastChild, rate(run.isActive ? throughput.at(-1) ?? null : totals.items_per_second));
  const busy = run.summary.elapsed_s > 0 ? Math.min(1, totals.busy_s / run.summary.elapsed_s) : 0;
  const texts = [count(totals.items), count(totals.in_hand), count(totals.chunks), percent(busy, 0), count(totals.dropped),
    count(totals.retries), count(rescuesOf(totals))];
  counts.forEach((cell, i) => setText(cell, texts[i]));
}

/** A device's health in words. */
function health({ state, quarantines, hangs }, run, now) {
  if (state.is === "retired") return { tone: "bad", words: "retired", more: "no more work in this run" };
  if (state.is === "quarantined") {
    const left = state.until_s - now;
    return { tone: "warn", words: "quarantined", more: !run.isActive ? "" : left > 0 ? `${left.toFixed(1)} s left` : "being tried" };
  }
  const times = quarantines === 0 ? "" : quarantines === 1 ? "was out once" : `was out ${count(quarantines)} times`;
  return { tone: "ok", words: "healthy", more: hangs > 0 ? `${times}, hung` : times };
}

function drawSparkline(svg, samples) {
  const most = Math.max(...samples, 1e-9);
  // A run that has just begun does not fill the width.
  const step = 110 / (Math.max(samples.length, HISTORY / 8) - 1);
  const start = 110 - (samples.length - 1) * step;
  const line = samples.map((it, i) => `${(start + i * step).toFixed(1)} ${(25 - (it / most) * 24).toFixed(1)}`).join("L");
  const [area, stroke] = svg.children;
  setAttribute(stroke, "d", samples.length > 1 ? `M${line}` : "");
  setAttribute(area, "d", samples.length > 1 ? `M${start.toFixed(1)} 26L${line}L110 26Z` : "");
}

/** The lanes that the chart has in view, in words: for who cannot see the chart. */
function showLanesInWords(chart) {
  const first = chart.firstRow ?? 0;
  const rows = chart.rows.slice(first, Math.min(chart.lastRow ?? 0, first + MAX_LANES_IN_WORDS));
  setText(byId("lanes-caption"), chart.rows.length === 0 ? "No lanes"
    : `Lanes ${first + 1} to ${first + rows.length} of ${count(chart.rows.length)}: those that the chart has in view`);
  const makeRow = () => make("tr", {}, ...Array.from({ length: 5 }, () => make("td")));
  reuse(byId("lanes-table"), rows, makeRow, (element, { name, lane }) => {
    const inHand = lane.inHand.map(({ kind, first: from, items }) => `${KIND_NAMES[kind]} ${count(from)}..${count(from + items)}`);
    const last = lastBar(lane, () => true);
    const failure = lastBar(lane, (kind) => kind === FAILURE);
    const texts = [name, stateInWords(lane.state, chart.nowS ?? 0), inHand.slice(0, 2).join(", ") || "nothing",
      last ? `${KIND_NAMES[last.kind]}, ${time(last.took)}, at ${last.until.toFixed(1)} s` : NONE,
      failure ? `at ${failure.until.toFixed(1)} s` : NONE];
    texts.forEach((text, i) => setText(element.children[i], text));
  });
}

function lastBar({ bars }, isWanted) {
  for (let age = bars.length - 1; age >= 0; age -= 1) {
    const at = bars.index(age);
    if (isWanted(bars.kind[at])) {
      return { kind: KINDS[bars.kind[at]], until: bars.until[at], took: bars.until[at] - bars.from[at] };
    }
  }
  return null;
}
