// What the page knows of the programs: the JSON of `evener_view::state`, kept up to date by snapshots and deltas.
//
// Everything here is bounded, however long the page stays open: the server bounds its lists, this file keeps the same bounds,
// and what it keeps beyond them (history, quarantines, programs that have gone) has bounds of its own.

/** Samples of a device's throughput, and seconds between two of them: `HISTORY` and `SAMPLE_S` of `evener_view::state`. */
const HISTORY = 120;
const SAMPLE_S = 0.5;
/** Lines of a program's log: `MAX_LOG` of `evener_view::state`. */
const MAX_LOG = 256;
/** Programs that have ended and are still shown. */
const MAX_GONE = 4;
/** Quarantines of a lane that are drawn. */
const MAX_QUARANTINES = 16;
/** Width and number of the time buckets that remember how busy a lane was, once its bars are forgotten. */
const BUCKET_S = 0.25;
const BUCKETS = 256;
/** Lanes of all runs together whose past is remembered in buckets: about 1.3 kB each. */
const MAX_HISTORY_LANES = 12_288;

/** Kinds of bars, in the order of their numbers in `Bars.kind`. */
const KINDS = ["work", "speculative", "steal", "canary", "dropped", "failure", "preparation"];
const KIND_NUMBER = new Map(KINDS.map((kind, number) => [kind, number]));
const [WORK, SPECULATIVE, STEAL, CANARY, DROPPED, FAILURE, PREPARATION] = KINDS.keys();

/** The last bars of a lane, oldest first, in columns: a bar as an object would take three times the memory. */
class Bars {
  constructor(max) {
    this.max = Math.max(1, max);
    this.length = 0;
    this.oldest = 0;
    this.grow(Math.min(8, this.max));
  }

  grow(capacity) {
    const { length } = this;
    const order = Array.from({ length }, (_, i) => this.index(i));
    for (const column of ["from", "until", "first", "items"]) {
      const grown = new Float64Array(capacity);
      order.forEach((at, i) => (grown[i] = this[column][at]));
      this[column] = grown;
    }
    const kind = new Uint8Array(capacity);
    order.forEach((at, i) => (kind[i] = this.kind[at]));
    this.kind = kind;
    this.capacity = capacity;
    this.oldest = 0;
  }

  /** Where the columns have the bar of this age, counted from the oldest. */
  index(age) {
    const index = this.oldest + age;
    return index < this.capacity ? index : index - this.capacity;
  }

  push(bar, from) {
    if (this.length === this.capacity && this.capacity < this.max) {
      this.grow(Math.min(this.capacity * 2, this.max));
    }
    if (this.length === this.capacity) {
      this.oldest = this.index(1);
      this.length -= 1;
    }
    const at = this.index(this.length);
    this.from[at] = from;
    this.until[at] = bar.until_s;
    this.first[at] = bar.first;
    this.items[at] = bar.items;
    this.kind[at] = KIND_NUMBER.get(bar.kind) ?? WORK;
    this.length += 1;
  }

  /** The start of the oldest bar. */
  since() {
    return this.length === 0 ? Infinity : this.from[this.oldest];
  }
}

/** How busy each lane of a run was, in buckets of time: what is drawn where the bars are forgotten. */
class BusyHistory {
  constructor(lanes) {
    this.lanes = lanes;
    this.busy = new Float32Array(lanes * BUCKETS);
    /** One bit for each kind of bar that ended in the bucket. */
    this.kinds = new Uint8Array(lanes * BUCKETS);
    this.latest = new Int32Array(lanes).fill(-1);
  }

  /** The place of a bucket of a lane, or -1 if it is forgotten or has not come yet. */
  place(lane, bucket) {
    const latest = this.latest[lane];
    return bucket > latest || bucket <= latest - BUCKETS || bucket < 0 ? -1 : lane * BUCKETS + (bucket % BUCKETS);
  }

  add(lane, from, until, kind, fraction = 1) {
    const end = Math.max(0, Math.floor(until / BUCKET_S));
    this.advance(lane, end);
    for (let bucket = Math.max(0, Math.floor(from / BUCKET_S), end - BUCKETS + 1); bucket <= end; bucket += 1) {
      const place = this.place(lane, bucket);
      if (place < 0) continue;
      const overlap = Math.min(until, (bucket + 1) * BUCKET_S) - Math.max(from, bucket * BUCKET_S);
      this.busy[place] += Math.max(0, overlap) * fraction;
    }
    const place = this.place(lane, end);
    if (place >= 0) this.kinds[place] |= 1 << kind;
  }

  advance(lane, bucket) {
    const latest = this.latest[lane];
    if (bucket <= latest) return;
    const first = lane * BUCKETS;
    if (bucket - latest >= BUCKETS) {
      this.busy.fill(0, first, first + BUCKETS);
      this.kinds.fill(0, first, first + BUCKETS);
    } else {
      for (let new_ = latest + 1; new_ <= bucket; new_ += 1) {
        this.busy[first + (new_ % BUCKETS)] = 0;
        this.kinds[first + (new_ % BUCKETS)] = 0;
      }
    }
    this.latest[lane] = bucket;
  }
}

/** A lane of a device. */
class Lane {
  constructor(view, maxBars, number) {
    /** Its number in the run. */
    this.number = number;
    this.state = { is: "healthy" };
    this.inHand = view.in_hand;
    this.bars = new Bars(maxBars);
    /** Spans without work after a failure: `{ from, until, end, retired }`, `end` being null while it lasts. */
    this.quarantines = [];
    this.failedAt = null;
    /** The end of the last bar. */
    this.doneUntil = 0;
  }

  apply(view, now, history, missedFraction) {
    const isCut = view.bars.length >= this.bars.max && this.doneUntil > 0;
    if (history && isCut && view.bars[0].from_s > this.doneUntil) {
      // More chunks than a lane keeps have ended since the last update: the device's busy time stands for them.
      history.add(this.number, this.doneUntil, view.bars[0].from_s, WORK, missedFraction);
    }
    for (const bar of view.bars) {
      // A lane works on one chunk at a time: one that was handed out ahead begins when the one before ends.
      const from = Math.max(bar.from_s, Math.min(this.doneUntil, bar.until_s));
      this.bars.push(bar, from);
      history?.add(this.number, from, bar.until_s, KIND_NUMBER.get(bar.kind) ?? WORK);
      this.doneUntil = Math.max(this.doneUntil, bar.until_s);
      if (bar.kind === "failure") this.failedAt = bar.until_s;
      if (bar.kind === "canary") this.comeBack(bar.until_s);
    }
    this.inHand = view.in_hand;
    this.setState(view.state, now);
  }

  /** A canary has succeeded. The quarantine before it may have been too short to be seen as a state. */
  comeBack(at) {
    const last = this.quarantines.at(-1);
    if (last && last.end === null) last.end = at;
    else if (this.failedAt !== null) this.addQuarantine({ from: this.failedAt, until: at, end: at, retired: false });
    this.failedAt = null;
  }

  setState(state, now) {
    this.state = state;
    const last = this.quarantines.at(-1);
    const open = last && last.end === null ? last : null;
    if (state.is === "healthy") {
      if (open) open.end = Math.max(open.from, now);
      return;
    }
    const until = state.is === "quarantined" ? state.until_s : Infinity;
    const retired = state.is === "retired";
    if (open) Object.assign(open, { until, retired });
    else this.addQuarantine({ from: this.failedAt ?? now, until, end: null, retired });
  }

  addQuarantine(quarantine) {
    this.quarantines.push(quarantine);
    if (this.quarantines.length > MAX_QUARANTINES) this.quarantines.shift();
  }
}

/** A run or a queue. */
class Run {
  constructor(view, pid, mayRemember) {
    this.pid = pid;
    this.key = `${pid}/${view.summary.id}`;
    this.summary = view.summary;
    this.leftOut = view.left_out;
    this.receivedAt = performance.now();
    /** All lanes, in order; a lane's place is its number. */
    this.lanes = [];
    this.devices = view.devices.map((device, index) => {
      const lanes = device.lanes.map((lane) => {
        const made = new Lane(lane, view.max_bars, this.lanes.length);
        this.lanes.push({ lane: made, device: index });
        return made;
      });
      return { index, id: device.id, totals: device.totals, throughput: device.throughput, lanes };
    });
    this.history = mayRemember(this.lanes.length) ? new BusyHistory(this.lanes.length) : null;
    view.devices.forEach((device, index) =>
      device.lanes.forEach((lane, at) =>
        this.devices[index].lanes[at].apply(lane, view.summary.elapsed_s, this.history, 1)),
    );
  }

  /** Keeps what the page remembers of a run whose devices have changed. */
  inherit(old) {
    const isSame = old.lanes.length === this.lanes.length && old.devices.every((it, i) => it.id === this.devices[i].id);
    if (!isSame) return;
    this.history = old.history;
    this.lanes.forEach(({ lane }, i) => {
      const before = old.lanes[i].lane;
      for (let age = 0; this.history && age < lane.bars.length; age += 1) {
        const { from, until, kind } = lane.bars;
        const at = lane.bars.index(age);
        if (until[at] > before.doneUntil) this.history.add(lane.number, Math.max(from[at], before.doneUntil), until[at], kind[at]);
      }
      lane.quarantines = before.quarantines;
      lane.setState(lane.state, this.summary.elapsed_s);
    });
  }

  apply({ summary, devices }) {
    const passed = summary.elapsed_s - this.summary.elapsed_s;
    this.summary = summary;
    this.receivedAt = performance.now();
    for (const { device, totals, throughput, lanes } of devices) {
      const known = this.devices[device];
      if (!known) continue;
      const busy = passed > 0 ? (totals.busy_s - known.totals.busy_s) / passed : 0;
      known.totals = totals;
      appendBounded(known.throughput, throughput, HISTORY);
      for (const changed of lanes) {
        known.lanes[changed.lane]?.apply(changed, summary.elapsed_s, this.history, Math.min(1, Math.max(0, busy)));
      }
    }
  }

  get isActive() {
    return this.summary.ended === null;
  }
}

/** A program. */
class Program {
  constructor(snapshot, mayRemember) {
    this.pid = snapshot.pid;
    this.name = snapshot.name;
    this.version = snapshot.version;
    this.unix_s = snapshot.unix_s;
    this.lostEvents = snapshot.lost_events;
    this.runs = snapshot.runs.map((run) => new Run(run, this.pid, mayRemember));
    this.past = snapshot.past;
    this.log = snapshot.log;
    this.log.forEach((line) => (line.number = Program.nextLine++));
    this.isGone = false;
  }

  /** Applies a delta as `evener_view::state::Program::apply` does. Returns the new lines of the log, or null if the delta is
   *  one to another version. */
  apply(delta, mayRemember) {
    if (delta.from !== this.version) return null;
    this.version = delta.version;
    this.unix_s = delta.unix_s;
    this.lostEvents = delta.lost_events;
    const byId = new Map(this.runs.map((run) => [run.summary.id, run]));
    for (const view of delta.new_runs) {
      const old = byId.get(view.summary.id);
      const run = new Run(view, this.pid, mayRemember);
      if (old) run.inherit(old);
      byId.set(view.summary.id, run);
    }
    for (const changed of delta.runs) byId.get(changed.summary.id)?.apply(changed);
    this.runs = delta.shown.map((id) => byId.get(id)).filter((run) => run !== undefined);
    const kept = new Set(delta.kept_past);
    if (delta.past.length > 0 || this.past.length > kept.size) {
      this.past = [...this.past, ...delta.past].filter((run) => kept.has(run.summary.id));
    }
    delta.log.forEach((line) => (line.number = Program.nextLine++));
    appendBounded(this.log, delta.log, MAX_LOG);
    return delta.log;
  }
}
/** The number of the next line of any log, by which its element is found again. */
Program.nextLine = 1;

/** All programs that the server tells of. */
class Programs {
  constructor() {
    this.byPid = new Map();
    this.hardware = [];
    this.mayRemember = (lanes) => {
      let remembered = lanes;
      for (const run of this.runs()) remembered += run.history?.lanes ?? 0;
      return remembered <= MAX_HISTORY_LANES;
    };
  }

  snapshot(snapshot) {
    const old = this.byPid.get(snapshot.pid);
    const program = new Program(snapshot, this.mayRemember);
    if (old && !old.isGone) {
      for (const run of program.runs) {
        const before = old.runs.find((it) => it.summary.id === run.summary.id);
        if (before) run.inherit(before);
      }
    }
    this.byPid.set(snapshot.pid, program);
  }

  /** Returns the new lines of the log, or null if the page must ask for everything again. */
  delta({ pid, delta }) {
    const program = this.byPid.get(pid);
    return program && !program.isGone ? program.apply(delta, this.mayRemember) : null;
  }

  /** A program has ended: what it did stays for a while. */
  gone(pid) {
    const program = this.byPid.get(pid);
    if (!program || program.isGone) return;
    program.isGone = true;
    // At the end of the order, as the one that has ended last.
    this.byPid.delete(pid);
    if (program.runs.length + program.past.length > 0) this.byPid.set(pid, program);
    const gone = [...this.byPid.values()].filter((it) => it.isGone);
    gone.slice(0, -MAX_GONE).forEach((it) => this.byPid.delete(it.pid));
  }

  *runs() {
    for (const program of this.byPid.values()) yield* program.runs;
  }

  run(key) {
    for (const run of this.runs()) if (run.key === key) return run;
    return null;
  }

  /** The newest run that has not ended, or else the newest that has, of programs that are there before others. */
  newest() {
    let best = null;
    const rank = (run) => [this.byPid.get(run.pid).isGone ? 0 : 1, run.isActive ? 1 : 0, run.summary.began_unix_s];
    for (const run of this.runs()) {
      if (best === null || isGreater(rank(run), rank(best))) best = run;
    }
    return best;
  }
}

function isGreater(a, b) {
  const differs = a.findIndex((it, i) => it !== b[i]);
  return differs >= 0 && a[differs] > b[differs];
}

function appendBounded(list, more, max) {
  for (const it of more) list.push(it);
  if (list.length > max) list.splice(0, list.length - max);
}
