// The page: follows the server's events, and shows them some times a second.

/** Time between two updates of the texts and tables. */
const SHOW_EVERY_MS = 250;
/** A server tells the hardware's counters every second. Without any event for this long, the connection is lost. */
const SILENT_MS = 6_000;
/** Time after a new connection until programs that it does not tell of have gone. */
const STALE_MS = 2_500;
/** Time before everything is asked for again, so that a server which is always wrong is not asked all the time. */
const ASK_AGAIN_MS = 300;
/** Time between two announcements to a screen reader. */
const ANNOUNCE_EVERY_MS = 4_000;
/** Shortest time that a run is shown before a newer one is followed: there may be thousands a second. */
const FOLLOW_EVERY_MS = 1_000;

/** Devices from which on there is a filter. */
const FILTERED_FROM = 6;

const programs = new Programs();
const chart = new LanesChart({
  canvas: byId("lanes"), scroll: byId("lanes-scroll"), spacer: byId("lanes-spacer"), tooltip: byId("tooltip"),
});
const devicesTable = new DevicesTable();

/** What is chosen. */
const chosen = { key: null, since: 0, isFollowing: true };

// ---- connection -----------------------------------------------------------------------------------------------------

const connection = { source: null, heardAt: 0, isLost: false, wasThere: false, attempts: 0, timer: 0 };

function connect() {
  clearTimeout(connection.timer);
  connection.source?.close();
  const source = new EventSource("/events");
  connection.source = source;
  connection.heardAt = performance.now();
  const on = (name, take) => source.addEventListener(name, (event) => {
    if (source !== connection.source) return;
    connection.heardAt = performance.now();
    take(JSON.parse(event.data));
  });
  on("hello", ({ host, version }) => {
    setConnected();
    setText(byId("host"), host ?? "");
    setAttribute(byId("host"), "title", `Evener ${version}`);
    const stale = [...programs.byPid.values()].filter((program) => !program.isGone);
    setTimeout(() => stale.filter((it) => programs.byPid.get(it.pid) === it).forEach(({ pid }) => programs.gone(pid)), STALE_MS);
  });
  on("snapshot", (snapshot) => programs.snapshot(snapshot));
  on("delta", (update) => {
    const lines = programs.delta(update);
    if (lines === null) askAgain();
    else lines.forEach(announceLine);
  });
  on("gone", ({ pid }) => programs.gone(pid));
  on("hardware", (devices) => (programs.hardware = devices));
  source.addEventListener("error", () => {
    if (source === connection.source) lose();
  });
}

/** The page has missed something: a new connection begins with everything. */
function askAgain() {
  connection.source.close();
  connection.source = null;
  clearTimeout(connection.timer);
  connection.timer = setTimeout(connect, ASK_AGAIN_MS);
}

function setConnected() {
  connection.attempts = 0;
  const chip = byId("connection");
  setText(chip, "live");
  setAttribute(chip, "data-tone", "ok");
  byId("banner").hidden = true;
  if (connection.isLost) announce("Connected again.");
  connection.isLost = false;
  connection.wasThere = true;
}

/** The connection is lost: tries again, at growing intervals. */
function lose() {
  connection.source?.close();
  connection.source = null;
  const words = connection.wasThere ? "Connection lost, retrying" : "No connection yet, retrying";
  if (!connection.isLost) announce(`${words}.`);
  connection.isLost = true;
  const chip = byId("connection");
  setText(chip, "connection lost, retrying");
  setAttribute(chip, "data-tone", "bad");
  setText(byId("banner"), `${words}. What is shown is of ${timeOfDay(Date.now() / 1000 - (performance.now() - connection.heardAt) / 1000)}.`);
  byId("banner").hidden = !connection.wasThere;
  connection.attempts += 1;
  clearTimeout(connection.timer);
  connection.timer = setTimeout(connect, Math.min(10_000, 500 * 2 ** Math.min(connection.attempts, 5)));
}

// ---- announcements --------------------------------------------------------------------------------------------------

const announcements = { waiting: [], more: 0, at: -Infinity };

/** Decisions that change what a user can expect are read out; the log has them all. */
function announceLine(line) {
  if (line.is_failure || / is back$| done in | ended after | joins: /.test(line.text)) announce(line.text);
}

function announce(text) {
  if (announcements.waiting.length < 2) announcements.waiting.push(text);
  else announcements.more += 1;
}

function speak(at) {
  if (announcements.waiting.length === 0 || at - announcements.at < ANNOUNCE_EVERY_MS) return;
  const { waiting, more } = announcements;
  setText(byId("announcement"), waiting.join(". ") + (more > 0 ? `. And ${more} more in the log.` : ""));
  Object.assign(announcements, { waiting: [], more: 0, at });
}

// ---- what is shown --------------------------------------------------------------------------------------------------

function choose(key) {
  chosen.key = key;
  chosen.since = performance.now();
  chosen.isFollowing = false;
  byId("follow").checked = false;
  devicesTable.page = 0;
  show();
}

/** The run to show: the chosen one, or the newest. */
function shownRun(at) {
  const current = chosen.key === null ? null : programs.run(chosen.key);
  if (current !== null && !chosen.isFollowing) return current;
  // A chosen run that is no longer there cannot be shown.
  if (chosen.key !== null && current === null) chosen.isFollowing = byId("follow").checked = true;
  const newest = programs.newest();
  const mayChange = current === null || at - chosen.since >= FOLLOW_EVERY_MS;
  if (newest !== null && newest !== current && mayChange) {
    chosen.key = newest.key;
    chosen.since = at;
    devicesTable.page = 0;
    return newest;
  }
  return current ?? newest;
}

function show() {
  const at = performance.now();
  const run = shownRun(at);
  showPrograms(programs, run, choose);
  showHardware(programs.hardware);
  byId("empty").hidden = run !== null;
  byId("shown").hidden = run === null;
  document.title = titleOf(run);
  if (run === null) {
    chart.show(null, []);
    return;
  }
  const program = programs.byPid.get(run.pid);
  showSummary(run, program);
  const devices = filtered(run.devices, { text: byId("filter").value, onlyTrouble: byId("trouble").checked });
  byId("filters").hidden = run.devices.length < FILTERED_FROM && byId("filter").value === "" && !byId("trouble").checked;
  const isFiltered = devices.length !== run.devices.length;
  setText(byId("filtered"), isFiltered ? `${count(devices.length)} of ${plural(run.devices.length, "device")}` : "");
  const rows = devices.flatMap(({ id, lanes }) =>
    lanes.map((lane, i) => ({ name: lanes.length > 1 ? `${id} · ${i}` : id, lane })));
  chart.show(run, rows);
  const now = run.isActive ? chart.now(at) : run.summary.elapsed_s;
  devicesTable.show(run, devices, byId("sort").value, now);
  showLog(program, run, { onlyRun: byId("log-run").checked, onlyFailures: byId("log-failures").checked });
  showPastRuns(program);
  if (byId("lanes-words").open) showLanesInWords(chart);
  setPaused(chart.pausedAt !== null);
}

function titleOf(run) {
  if (run === null) return "Evener";
  const done = progressOf(run.summary);
  const state = run.isActive ? (done === null ? "" : `${percent(Math.floor(done * 100) / 100, 0)} `) : "";
  return `${state}${run.summary.task} – Evener`;
}

function setPaused(isPaused) {
  const button = byId("pause");
  setAttribute(button, "aria-pressed", String(isPaused));
  setText(button, isPaused ? "Paused" : "Pause");
}

function togglePause() {
  chart.pause(chart.pausedAt === null);
  setPaused(chart.pausedAt !== null);
}

// ---- theme ----------------------------------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  setAttribute(document.documentElement, "data-theme", theme === "auto" ? null : theme);
  setText(byId("theme"), `Theme: ${theme}`);
  chart.readColours();
  showLegend(chart.colours);
}

/** The theme is kept where the browser lets the page keep it. */
function keptTheme(theme) {
  try {
    if (theme !== undefined) localStorage.setItem("evener-theme", theme);
    return localStorage.getItem("evener-theme");
  } catch {
    return null;
  }
}

// ---- start ----------------------------------------------------------------------------------------------------------

let theme = THEMES.includes(keptTheme()) ? keptTheme() : "auto";
setTheme(theme);
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  keptTheme(theme);
  setTheme(theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(theme));
byId("follow").addEventListener("change", (event) => {
  chosen.isFollowing = event.target.checked;
  chosen.since = 0;
  show();
});
byId("pause").addEventListener("click", togglePause);
byId("lanes-scroll").addEventListener("keydown", (event) => {
  if (event.key === " ") togglePause();
  else if (event.key === "ArrowLeft") chart.pan(-0.1);
  else if (event.key === "ArrowRight") chart.pan(0.1);
  else return;
  event.preventDefault();
});
for (const input of document.getElementsByName("window")) {
  input.addEventListener("change", () => {
    chart.setWindow(Number(input.value));
  });
}
devicesTable.onTurn = show;
for (const id of ["filter", "trouble", "sort", "log-run", "log-failures"]) byId(id).addEventListener("input", show);
byId("lanes-words").addEventListener("toggle", show);

let shownAt = -Infinity;
/** One loop for the chart and, less often, for the texts. A hidden page does neither. */
function loop(at) {
  if (at - shownAt >= SHOW_EVERY_MS) {
    shownAt = at;
    show();
    speak(at);
  }
  chart.frame(at);
  requestAnimationFrame(loop);
}
requestAnimationFrame(loop);
setInterval(() => {
  if (connection.source !== null && performance.now() - connection.heardAt > SILENT_MS) lose();
}, 1_000);
connect();
