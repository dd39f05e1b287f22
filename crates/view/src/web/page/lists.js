// What is beside the shown run: the programs, the hardware, the log of decisions, and the past runs.

/** Runs of a program that are listed, and lines of the log and devices of a report that are shown. */
const MAX_LISTED_RUNS = 24;
const MAX_LINES = 120;
const MAX_REPORT_DEVICES = 40;
/** Devices of this machine that are shown. */
const MAX_HARDWARE = 64;

function showPrograms(programs, shown, choose) {
  const all = [...programs.byPid.values()].sort((a, b) => a.isGone - b.isGone);
  byId("no-programs").hidden = all.length > 0;
  const makeProgram = () => make("li", {},
    make("p", { className: "program-name" }, make("b"), make("span")), make("ul"));
  reuseByKey(byId("programs"), all, ({ pid }) => pid, makeProgram, (element, program) => {
    const [title, list] = element.children;
    setText(title.children[0], program.name);
    setText(title.children[1], `${program.pid}${program.isGone ? ", has ended" : ""}${program.lostEvents > 0 ? `, ${count(program.lostEvents)} events lost` : ""}`);
    // The newest first, and those that have not ended before the others.
    const runs = [...program.runs].reverse().sort((a, b) => b.isActive - a.isActive).slice(0, MAX_LISTED_RUNS);
    reuseByKey(list, runs, ({ key }) => key, ({ key }) => makeRun(() => choose(key)),
      (item, run) => updateRun(item.firstChild, run, program, shown));
  });
}

function makeRun(choose) {
  const button = make("button", { className: "run", attributes: { type: "button" } },
    make("span", { className: "run-line" }, make("span"), make("span")),
    make("span", { className: "track" }, make("i")));
  button.addEventListener("click", choose);
  return make("li", {}, button);
}

function updateRun(button, run, program, shown) {
  const { summary } = run;
  const { name, state } = standing(run, program.isGone);
  const done = progressOf(summary);
  setAttribute(button, "data-state", state);
  setAttribute(button, "aria-current", run === shown ? "true" : null);
  const [line, track] = button.children;
  setText(line.children[0], summary.task);
  setText(line.children[1], state !== "running" ? name : done === null ? name : percent(Math.floor(done * 100) / 100, 0));
  track.firstChild.style.transform = `scaleX(${(done ?? 1).toFixed(3)})`;
}

function showHardware(devices) {
  byId("no-hardware").hidden = devices.length > 0;
  const makeMeter = (name) => {
    const meter = make("div", {}, make("dt", { text: name }), make("dd"));
    if (name === "busy" || name === "memory") meter.append(make("dd", { className: "track", attributes: { "aria-hidden": "true" } }, make("i")));
    return meter;
  };
  const makeDevice = () => make("li", {},
    make("p", { className: "hardware-name" }, make("b"), make("span")),
    make("dl", { className: "meters" }, ...["busy", "memory", "temperature", "power"].map(makeMeter)));
  reuseByKey(byId("hardware"), devices.slice(0, MAX_HARDWARE), ({ id }) => id, makeDevice, (element, device) => {
    const [title, meters] = element.children;
    setText(title.children[0], device.id);
    setText(title.children[1], device.name);
    setAttribute(title.children[1], "title", device.name);
    const { memory_bytes: all, memory_free_bytes: free } = device;
    const used = all !== null && free !== null && all > 0 ? Math.max(0, all - free) : null;
    const texts = [percent(device.utilization, 0), memory(used, all),
      device.temperature_celsius === null ? NONE : `${device.temperature_celsius.toFixed(0)} °C`,
      device.power_watts === null ? NONE : `${device.power_watts.toFixed(0)} W`];
    texts.forEach((text, i) => setText(meters.children[i].children[1], text));
    const parts = [device.utilization ?? 0, used === null ? 0 : used / all];
    parts.forEach((part, i) => (meters.children[i].children[2].firstChild.style.transform = `scaleX(${part.toFixed(3)})`));
  });
}

/** The log of decisions, newest first. */
function showLog(program, run, { onlyRun, onlyFailures }) {
  const lines = program.log.filter((line) => (!onlyRun || line.run === run.summary.id) && (!onlyFailures || line.is_failure))
    .slice(-MAX_LINES).reverse();
  byId("no-log").hidden = lines.length > 0;
  reuseByKey(byId("log"), lines, ({ number }) => number, makeLine);
}

function makeLine(line) {
  const element = make("li", {}, make("time", { text: timeOfDay(line.unix_s) }),
    make("span", { className: line.is_failure ? "failure" : "", attributes: { "aria-hidden": "true" } }),
    make("span", { className: line.is_failure ? "what bad" : "what" }));
  if (line.is_failure) element.lastChild.append(make("span", { className: "hidden", text: "failure: " }));
  element.lastChild.append(line.text);
  return element;
}

/** The past runs of a program, newest first. */
function showPastRuns(program) {
  const runs = [...program.past].reverse();
  setText(byId("past-of"), runs.length === 0 ? "" : `of ${program.name}`);
  byId("no-past").hidden = runs.length > 0;
  reuseByKey(byId("past"), runs, ({ summary }) => `${program.pid}/${summary.id}`, (past) => makePast(past, program));
}

/** A past run. Its report becomes elements when it is opened, and they are removed when it is closed. */
function makePast(past, program) {
  const { summary } = past;
  const isCancelled = /cancel/i.test(summary.ended?.error ?? "");
  const [tone, name] = !summary.ended?.error ? ["ok", "finished"] : isCancelled ? ["warn", "cancelled"] : ["bad", "failed"];
  const details = make("details", {}, make("summary", {}, make("span", { className: "past-line" },
    make("b", { text: summary.task }), make("span", { text: time(summary.elapsed_s) }),
    make("span", { text: efficiency(summary.efficiency), attributes: { title: "efficiency" } }),
    make("span", { className: "chip", text: name, attributes: { "data-tone": tone } }))));
  details.addEventListener("toggle", () => {
    details.children[1]?.remove();
    if (details.open) details.append(makeReport(past, program));
  });
  return details;
}

/** A run's report, as its text has it. */
function makeReport({ summary, report }, program) {
  const box = make("div", { className: "report" });
  const add = (text, className) => box.append(make("p", { text, className }));
  if (summary.ended?.error) add(summary.ended.error, "note bad");
  if (!report) {
    add("There is no report of it.");
    return box;
  }
  const parts = [`${count(report.done)} of ${plural(report.items, "item")} in ${time(report.wall_s)}`];
  if (report.efficiency !== null) {
    const bound = guaranteed(report.bound);
    parts.push(`efficiency ${efficiency(report.efficiency)}${bound ? ` (${bound})` : ""}`);
  }
  if (report.predicted_s !== null) parts.push(`predicted ${time(report.predicted_s)}`);
  if (report.speedup && report.devices.length > 1) {
    const { times, device } = report.speedup;
    parts.push(`${times.toFixed(2)} times as fast as ${device} alone`);
  }
  add(`${parts.join(", ")}.`);
  box.append(makeReportTable(report));
  for (const { id, failures } of report.devices.slice(0, MAX_REPORT_DEVICES)) {
    const times = new Map();
    for (const failure of failures ?? []) times.set(failure, (times.get(failure) ?? 0) + 1);
    for (const [failure, number] of times) add(`${id}: ${withoutName(id, failure)}${number > 1 ? ` (${number} times)` : ""}`, "muted");
  }
  for (const { id, reason } of report.left_out.slice(0, MAX_REASONS)) add(`${id} left out: ${reason}`, "muted");
  if (!program.isGone) {
    const link = make("a", { text: "Perfetto trace of this run", attributes: { download: "" } });
    showTraceLink(link, program, summary);
    box.append(make("p", {}, link));
  }
  return box;
}

function makeReportTable(report) {
  const columns = [
    ["Items", (it) => count(it.items)], ["Share", (it) => percent(report.done > 0 ? it.items / report.done : 0)],
    ["Chunks", (it) => count(it.chunks)], ["Rate", (it) => rate(it.rate)], ["Busy", (it) => time(it.busy_s)],
    ["Copies", (it) => time(it.copy_s)], ["Idle", (it) => time(it.idle_s)], ["Ready at", (it) => time(it.startup_s)],
    ["Out", (it) => time(it.quarantined_s)], ["Retries", (it) => count(it.retries)], ["Rescues", (it) => count(rescuesOf(it))],
    ["Dropped", (it) => count(it.dropped)], ["State", (it) => it.state],
  ];
  const head = make("tr", {}, make("th", { text: "Device", attributes: { scope: "col" } }),
    ...columns.map(([name]) => make("th", { text: name, className: "right", attributes: { scope: "col" } })));
  const rows = report.devices.slice(0, MAX_REPORT_DEVICES).map((device) => make("tr", {}, make("td", { text: device.id }),
    ...columns.map(([, text]) => make("td", { text: text(device), className: "right" }))));
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
  const more = report.devices.length - rows.length;
  if (more > 0) table.prepend(make("caption", { text: `${rows.length} of ${plural(report.devices.length, "device")}` }));
  return make("div", { className: "scroll-x", attributes: { tabindex: "0", role: "region", "aria-label": "Devices of the report" } }, table);
}
