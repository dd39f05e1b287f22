// A program that does not exist: snapshots and deltas as `evener_view::state` makes them, at any pace.

/** Random numbers that are the same in every run of a test. */
export function random(seed) {
  let state = seed >>> 0 || 1;
  return () => {
    state = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9;
    let mixed = Math.imul(state ^ (state >>> 12), 0x297a2d39);
    mixed ^= mixed >>> 15;
    return (mixed >>> 0) / 2 ** 32;
  };
}

const MAX_LOG = 256;
const MAX_PAST = 32;
const MAX_ENDED = 8;
const HISTORY = 120;

const bound = (list, max) => list.splice(0, Math.max(0, list.length - max));

export class GeneratedProgram {
  constructor({ pid = 4711, name = "prover", devices = 3, lanes = 1, chunkS = 0.2, runS = 30, failures = 0.002, seed = 1, ids, task = "hash",
    leftOut = [], unix = Date.now() / 1000 } = {}) {
    Object.assign(this, { pid, name, deviceCount: devices, laneCount: lanes, chunkS, runS, failures, ids, task, leftOut });
    this.random = random(seed);
    this.version = 1;
    this.unix = unix;
    this.runs = [];
    this.past = [];
    this.log = [];
    this.nextRun = 1;
    this.chunk = 0;
    this.chunksEnded = 0;
  }

  begin() {
    const devices = Array.from({ length: this.deviceCount }, (_, i) => ({
      id: this.ids?.[i] ?? `node${Math.floor(i / 8)}/cuda:${i % 8}`,
      totals: { state: { is: "healthy" }, items: 0, chunks: 0, in_hand: 0, items_per_second: null, busy_s: 0, retries: 0,
        speculative: 0, steals: 0, dropped: 0, quarantines: 0, hangs: 0, last_error: null },
      throughput: [],
      lanes: Array.from({ length: this.laneCount }, () => ({ state: { is: "healthy" }, in_hand: [], bars: [] })),
      speed: 400 + this.random() * 1600,
      sampled: 0,
    }));
    const speed = devices.reduce((sum, it) => sum + it.speed, 0) * this.laneCount;
    const run = {
      summary: { id: this.nextRun++, task: this.task, kind: "map", strategy: "adaptive", began_unix_s: this.unix, elapsed_s: 0,
        items: Math.round(speed * this.runS * 0.93), done: 0, items_per_second: 0, remaining_s: null, predicted_s: this.runS * 0.97,
        efficiency: null, bound: null, waiting_for: null, queue: null, ended: null },
      devices, left_out: this.leftOut, max_bars: Math.min(256, Math.max(8, Math.floor(16384 / (this.deviceCount * this.laneCount)))),
    };
    run.sampledAt = 0;
    run.handedOut = 0;
    run.isNew = true;
    this.runs.push(run);
    this.say(run, `${this.task} over ${run.summary.items} items, on ${devices.slice(0, 8).map((it) => it.id).join(", ")}`, false);
    this.leftOut.forEach(({ id, reason }) => this.say(run, `${id} left out: ${reason}`, false));
    return run;
  }

  say(run, text, isFailure) {
    this.log.push({ unix_s: this.unix, run: run.summary.id, text, is_failure: isFailure });
    this.newLines?.push(this.log.at(-1));
    bound(this.log, MAX_LOG);
  }

  active() {
    return this.runs.find((run) => run.summary.ended === null);
  }

  /** Lets time pass, and returns what has changed. */
  step(dt) {
    this.newLines = [];
    this.newPast = [];
    const from = this.version;
    this.version += 1;
    this.unix += dt;
    let run = this.active() ?? this.begin();
    const changes = this.work(run, dt);
    const newRuns = this.runs.filter((it) => it.isNew).map((it) => view(it));
    this.runs.forEach((it) => (it.isNew = false));
    const isNew = new Set(newRuns.map((it) => it.summary.id));
    const delta = {
      from, version: this.version, unix_s: this.unix, lost_events: 0, shown: this.runs.map((it) => it.summary.id), new_runs: newRuns,
      runs: isNew.has(run.summary.id) ? [] : [{ summary: { ...run.summary }, devices: changes }],
      kept_past: this.past.map((it) => it.summary.id), past: this.newPast, log: this.newLines,
    };
    return { pid: this.pid, delta };
  }

  work(run, dt) {
    const { summary } = run;
    const now = (summary.elapsed_s += dt);
    const isSample = now - run.sampledAt >= 0.5;
    const changes = [];
    const isTail = run.handedOut >= summary.items;
    run.devices.forEach((device, index) => {
      const lanes = [];
      device.lanes.forEach((lane, at) => {
        const bars = this.advance(run, device, lane, now, dt, isTail);
        if (bars) lanes.push({ lane: at, state: lane.state, in_hand: lane.in_hand, bars: bars.slice(-run.max_bars) });
      });
      const throughput = [];
      if (isSample) {
        throughput.push((device.totals.items - device.sampled) / (now - run.sampledAt));
        device.sampled = device.totals.items;
        device.throughput.push(throughput[0]);
        bound(device.throughput, HISTORY);
      }
      if (lanes.length + throughput.length > 0) {
        device.totals.in_hand = device.lanes.reduce((sum, lane) => sum + lane.in_hand.reduce((all, it) => all + it.items, 0), 0);
        device.totals.state = device.lanes.find((lane) => lane.state.is === "healthy")?.state ?? device.lanes[0].state;
        changes.push({ device: index, totals: { ...device.totals }, throughput, lanes });
      }
    });
    if (isSample) run.sampledAt = now;
    summary.done = Math.min(summary.items, run.devices.reduce((sum, it) => sum + it.totals.items, 0));
    summary.items_per_second = summary.done / now;
    summary.remaining_s = summary.done > 0 ? (summary.items - summary.done) / summary.items_per_second : null;
    summary.efficiency = Math.min(0.99, 0.9 + now / 400);
    if (isTail) summary.bound = 0.87654;
    if (summary.done >= summary.items) this.end(run, changes);
    return changes;
  }

  end(run, changes) {
    const { summary } = run;
    summary.ended = { unix_s: this.unix, error: null };
    summary.remaining_s = null;
    run.devices.forEach((device, index) => device.lanes.forEach((lane, at) => {
      if (lane.in_hand.length === 0) return;
      lane.in_hand = [];
      device.totals.in_hand = 0;
      const change = changes.find((it) => it.device === index) ?? changes[changes.push({ device: index, totals: device.totals, throughput: [], lanes: [] }) - 1];
      change.totals = { ...device.totals };
      const known = change.lanes.find((it) => it.lane === at);
      if (known) known.in_hand = [];
      else change.lanes.push({ lane: at, state: lane.state, in_hand: [], bars: [] });
    }));
    this.say(run, `${summary.task} done in ${summary.elapsed_s.toFixed(1)} s, efficiency ${summary.efficiency.toFixed(2)} (guaranteed ≥ 0.87)`, false);
    const devices = run.devices.map(({ id, totals }) => ({ id, items: totals.items, chunks: totals.chunks, busy_s: totals.busy_s, copy_s: totals.busy_s / 20,
      idle_s: summary.elapsed_s - totals.busy_s, startup_s: 0.04, quarantined_s: 0, rate: totals.items / Math.max(1e-9, totals.busy_s), retries: totals.retries,
      speculative: totals.speculative, steals: totals.steals, dropped: totals.dropped, quarantines: totals.quarantines, hangs: 0, state: totals.state.is }));
    const report = { task: summary.task, strategy: "adaptive", items: summary.items, done: summary.done, wall_s: summary.elapsed_s, ideal_s: summary.elapsed_s * summary.efficiency,
      efficiency: summary.efficiency, bound: summary.bound, predicted_s: summary.predicted_s, devices, left_out: run.left_out };
    this.past.push({ summary: { ...summary }, report });
    this.newPast.push(this.past.at(-1));
    bound(this.past, MAX_PAST);
    const ended = this.runs.filter((it) => it.summary.ended !== null);
    const surplus = new Set(ended.slice(0, Math.max(0, ended.length - MAX_ENDED)));
    this.runs = this.runs.filter((it) => !surplus.has(it));
  }

  /** A lane in a step. Returns its new bars, or null if nothing has changed. */
  advance(run, device, lane, now, dt, isTail) {
    const { totals } = device;
    if (lane.state.is === "quarantined") {
      if (now < lane.state.until_s) return null;
      lane.state = { is: "healthy" };
      this.say(run, `${device.id} is back`, false);
      const bar = { kind: "canary", first: 0, items: 8, from_s: now - Math.min(0.05, dt), until_s: now };
      return push(lane, [bar], run.max_bars);
    }
    const bars = [];
    let begun = false;
    while (lane.in_hand.length > 0 && lane.in_hand[0].ends <= now) {
      const { first, items, kind, since_s: since, ends } = lane.in_hand.shift();
      this.chunksEnded += 1;
      totals.busy_s += (ends - since) / this.laneCount;
      if (this.random() < this.failures) {
        bars.push({ kind: "failure", first, items, from_s: since, until_s: ends });
        totals.retries += 1;
        totals.quarantines += 1;
        totals.last_error = "device lost: the driver was reset (injected)";
        lane.state = { is: "quarantined", until_s: now + 1 + this.random() * 4 };
        lane.in_hand = [];
        this.say(run, `${device.id}: ${totals.last_error}`, true);
        this.say(run, `${device.id} quarantined for ${(lane.state.until_s - now).toFixed(1)} s`, true);
        run.handedOut -= items;
        return push(lane, bars, run.max_bars);
      }
      const isDropped = kind === "speculative" && this.random() < 0.3;
      bars.push({ kind: isDropped ? "dropped" : kind, first, items, from_s: since, until_s: ends });
      totals.chunks += 1;
      if (isDropped) totals.dropped += 1;
      else totals.items += items;
      if (kind === "speculative" && !isDropped) totals.speculative += 1;
      if (kind === "steal") totals.steals += 1;
      if (totals.busy_s > 0) totals.items_per_second = totals.items / totals.busy_s;
      this.hand(run, device, lane, ends, isTail);
      begun = true;
    }
    if (lane.in_hand.length === 0) {
      this.hand(run, device, lane, now - dt, isTail);
      begun = true;
    }
    return bars.length > 0 || begun ? push(lane, bars, run.max_bars) : null;
  }

  hand(run, device, lane, since, isTail) {
    const took = this.chunkS * (0.5 + this.random()) * (isTail ? 0.4 : 1);
    const items = Math.max(1, Math.round(device.speed * took));
    const draw = this.random();
    const kind = draw > 0.985 ? "steal" : draw > 0.97 || (isTail && draw > 0.5) ? "speculative" : "work";
    lane.in_hand.push({ chunk: this.chunk++, first: run.handedOut, items, kind, since_s: since, ends: since + took });
    run.handedOut += items;
  }

  snapshot() {
    return { pid: this.pid, name: this.name, version: this.version, unix_s: this.unix, lost_events: 0, runs: this.runs.map((run) => view(run)),
      past: this.past, log: this.log };
  }
}

function push(lane, bars, max) {
  lane.bars.push(...bars);
  bound(lane.bars, max);
  return bars;
}

function view({ summary, devices, left_out, max_bars }) {
  return { summary: { ...summary }, left_out, max_bars,
    devices: devices.map(({ id, totals, throughput, lanes }) => ({ id, totals: { ...totals }, throughput: [...throughput], lanes })) };
}

export const HARDWARE = [
  { id: "cuda:0", name: "NVIDIA H200 NVL, 141 GB", kind: "discrete", utilization: 0.87, memory_bytes: 150e9, memory_free_bytes: 61e9, temperature_celsius: 64, power_watts: 512 },
  { id: "vulkan:0", name: "AMD Radeon RX 7900", kind: "discrete", utilization: 0.41, memory_bytes: 24e9, memory_free_bytes: 12e9, temperature_celsius: null, power_watts: null },
  { id: "cpu", name: "AMD EPYC 9454", kind: "cpu", utilization: 0.33, memory_bytes: 256e9, memory_free_bytes: 190e9, temperature_celsius: null, power_watts: null },
];
