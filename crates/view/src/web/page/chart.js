// The lanes of a run as a moving chart. Only the lanes that are scrolled into view are drawn.

/** Heights of a row and of a bar in it: larger where there are few lanes. */
const SIZES = { few: { row: 36, bar: 24 }, many: { row: 26, bar: 16 } };
const FEW = 8;
const AXIS = 24;
/** Time between two moves: more would only cost power. */
const MOVE_MS = 30;
const REDUCED_MOTION_MS = 1000;
/** Spans of time that the chart can show, in seconds. */
const WINDOWS_S = [5, 15, 60];
/** Part of the chart's width that is behind now, where a quarantine's end and waiting chunks are. */
const AHEAD = 0.08;

class LanesChart {
  constructor({ canvas, scroll, spacer, tooltip }) {
    Object.assign(this, { canvas, scroll, spacer, tooltip });
    this.context = canvas.getContext("2d", { alpha: false });
    this.run = null;
    this.rows = [];
    Object.assign(this, SIZES.many);
    this.windowS = 15;
    this.pausedAt = null;
    this.clock = null;
    this.isDirty = true;
    this.lastMove = 0;
    /** How often the chart was drawn, and how often it moved: read by the tests. */
    canvas.frames = canvas.moves = 0;
    this.reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
    new ResizeObserver(() => this.resize()).observe(scroll);
    scroll.addEventListener("scroll", () => (this.isDirty = true), { passive: true });
    scroll.addEventListener("pointermove", (event) => this.showTooltip(event));
    scroll.addEventListener("pointerdown", (event) => this.showTooltip(event));
    scroll.addEventListener("pointerleave", () => (tooltip.hidden = true));
    this.readColours();
  }

  /** Shows these lanes of a run. */
  show(run, rows) {
    if (run?.key !== this.run?.key) {
      this.pausedAt = null;
      this.clock = null;
      this.scroll.scrollTop = 0;
    }
    this.run = run;
    this.rows = rows;
    Object.assign(this, (run?.lanes.length ?? 0) <= FEW ? SIZES.few : SIZES.many);
    const height = AXIS + Math.max(1, rows.length) * this.row;
    if (this.height !== height) {
      this.height = height;
      this.spacer.style.height = `${height}px`;
      this.resize();
    }
    this.isDirty = true;
  }

  readColours() {
    const probe = make("span", { className: "probe" });
    document.body.append(probe);
    const names = ["panel", "text", "muted", "line", "grid", "work", "speculative", "steal", "canary", "dropped", "failure",
      "preparation", "quarantine", "ok", "warn", "bad", "on-bar"];
    this.colours = Object.fromEntries(names.map((name) => {
      probe.style.color = `var(--${name})`;
      return [name, getComputedStyle(probe).color];
    }));
    this.font = getComputedStyle(probe).fontFamily;
    probe.remove();
    this.brush = new Brush(this.context, this.colours);
    this.isDirty = true;
  }

  resize() {
    const width = this.scroll.clientWidth;
    const height = Math.min(this.scroll.clientHeight, this.height ?? 0);
    const scale = Math.min(devicePixelRatio || 1, 2);
    if (width === 0 || height === 0) return;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    Object.assign(this, { width, viewHeight: height, scale });
    this.labels = Math.min(170, Math.max(84, width * 0.16));
    this.movedFor = null;
    this.isDirty = true;
  }

  /** The time of the run that is now, which goes on between two updates. */
  now(at) {
    const { summary, receivedAt } = this.run;
    if (!this.run.isActive) return summary.elapsed_s;
    const told = summary.elapsed_s + Math.min(1, (at - receivedAt) / 1000);
    if (this.clock === null) this.clock = { at, now: told };
    const passed = (at - this.clock.at) / 1000;
    const expected = this.clock.now + passed;
    // Updates come unevenly: the clock follows them smoothly, unless it is far off.
    const off = told - expected;
    const now = Math.abs(off) > 1 ? told : Math.max(this.clock.now, expected + off * Math.min(1, passed * 4));
    this.clock = { at, now };
    return now;
  }

  pause(isPaused) {
    this.pausedAt = isPaused && this.run ? this.now(performance.now()) : null;
    this.isDirty = true;
  }

  setWindow(seconds) {
    this.windowS = seconds;
    this.movedFor = null;
    this.isDirty = true;
  }

  /** Moves the paused chart through time. */
  pan(parts) {
    if (this.pausedAt === null || !this.run) return;
    const end = this.now(performance.now());
    this.pausedAt = Math.min(end, Math.max(Math.min(this.windowS, end), this.pausedAt + parts * this.windowS));
    this.isDirty = true;
  }

  /** Draws a frame, if one is due. */
  frame(at) {
    if (!this.run || !this.width) return;
    const moves = this.run.isActive && this.pausedAt === null;
    const pause = this.reducedMotion.matches ? REDUCED_MOTION_MS : MOVE_MS;
    const mustMove = moves ? at - this.lastMove >= pause - 2 : this.isDirty;
    if (!mustMove && !this.isDirty) return;
    this.isDirty = false;
    this.canvas.frames += 1;
    if (mustMove || this.movedFor !== this.run.key) this.move(at);
    this.draw();
  }

  /** Moves the chart to the present time. */
  move(at) {
    this.lastMove = at;
    this.movedFor = this.run.key;
    this.canvas.moves += 1;
    const now = this.pausedAt ?? this.now(performance.now());
    const hasGap = this.run.isActive && this.pausedAt === null;
    // A run that has just begun is shown in the shortest window that it fits in, and one that has ended as wide as it was.
    const fitting = this.run.isActive ? WINDOWS_S.find((it) => now <= it * 0.96) ?? this.windowS : Math.max(now, 0.001);
    const span = Math.min(this.windowS, fitting);
    const left = Math.max(0, now - span);
    const plot = (this.width - this.labels) * (hasGap ? 1 - AHEAD : 1) - 1;
    Object.assign(this, { left, nowS: now, pixelsPerS: plot / span, clipAt: this.pausedAt === null ? Infinity : now });
  }

  x(seconds) {
    return this.labels + (seconds - this.left) * this.pixelsPerS;
  }

  draw() {
    const { context, colours } = this;
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, this.width, this.viewHeight);
    const top = this.scroll.scrollTop;
    const first = Math.max(0, Math.floor(top / this.row));
    const last = Math.min(this.rows.length, Math.ceil((top + this.viewHeight - AXIS) / this.row));
    context.save();
    context.beginPath();
    context.rect(0, AXIS, this.width, this.viewHeight - AXIS);
    context.clip();
    this.drawGrid(AXIS, this.viewHeight);
    for (let row = first; row < last; row += 1) this.drawRow(this.rows[row], AXIS + row * this.row - top);
    if (this.run.isActive && this.pausedAt === null) {
      context.fillStyle = colours.muted;
      context.fillRect(Math.round(this.x(this.nowS)), AXIS, 1, this.viewHeight - AXIS);
    }
    context.restore();
    this.drawAxis();
    this.firstRow = first;
    this.lastRow = last;
  }

  ticks() {
    const wanted = Math.max(2, (this.width - this.labels) / 72);
    const span = (this.width - this.labels) / this.pixelsPerS;
    const step = [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60]
      .find((it) => span / it <= wanted) ?? 60;
    const ticks = [];
    for (let at = Math.ceil(this.left / step) * step; at <= this.left + span && ticks.length < 40; at += step) ticks.push(at);
    return { ticks, step };
  }

  drawGrid(top, bottom) {
    this.context.fillStyle = this.colours.grid;
    for (const at of this.ticks().ticks) this.context.fillRect(Math.round(this.x(at)), top, 1, bottom - top);
  }

  drawAxis() {
    const { context, colours } = this;
    context.fillStyle = colours.line;
    context.fillRect(0, AXIS - 1, this.width, 1);
    context.font = `11px ${this.font}`;
    context.textBaseline = "middle";
    context.fillStyle = colours.muted;
    const { ticks, step } = this.ticks();
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const edge = this.width - 4;
    for (const at of ticks) {
      const text = at >= 60 ? clock(at) : step < 0.1 && at < 1 ? `${(at * 1000).toFixed(Math.max(0, digits - 3))} ms` : `${at.toFixed(Math.min(digits, 2))} s`;
      const x = this.x(at) + 4;
      if (x + context.measureText(text).width < edge) context.fillText(text, x, AXIS / 2);
    }
    context.fillText("lane", 10, AXIS / 2);
  }

  drawRow({ name, lane }, top) {
    const { context, colours } = this;
    const bar = top + (this.row - this.bar) / 2;
    context.fillStyle = colours.grid;
    context.fillRect(0, top + this.row - 1, this.width, 1);
    context.save();
    context.beginPath();
    context.rect(this.labels, top, this.width - this.labels, this.row);
    context.clip();
    for (const quarantine of lane.quarantines) this.drawQuarantine(quarantine, top);
    const barsSince = lane.bars.since();
    if (barsSince > this.left) this.drawHistory(lane, Math.min(barsSince, this.nowS), bar);
    this.drawBars(lane, bar);
    if (this.pausedAt === null) this.drawInHand(lane, bar);
    for (const quarantine of lane.quarantines) this.labelQuarantine(quarantine, top);
    context.restore();
    this.drawLabel(name, lane.state.is, top);
  }

  drawLabel(name, state, top) {
    const { context, colours } = this;
    const middle = top + this.row / 2;
    context.fillStyle = colours.panel;
    context.fillRect(0, top, this.labels, this.row - 1);
    this.brush.state(state, 13, middle);
    context.font = `12px ${this.font}`;
    context.textBaseline = "middle";
    context.fillStyle = colours.text;
    context.fillText(fitted(context, name, this.labels - 32), 24, middle);
  }

  drawQuarantine({ from, until, end, retired }, top) {
    const stop = Math.min(end ?? (this.run.isActive ? Math.max(this.nowS, Math.min(until, this.nowS + 1e6)) : this.nowS), this.clipAt);
    const [x, right] = [Math.max(this.labels, this.x(from)), Math.min(this.width, this.x(stop))];
    if (right <= x) return;
    this.brush.span(retired, x, right - x, top + 1, this.row - 3);
    // The end is a line of its own.
    if (end !== null) this.context.fillRect(right - 1, top + 1, 2, this.row - 3);
  }

  labelQuarantine({ from, until, end, retired }, top) {
    const x = Math.max(this.labels, this.x(from)) + 12;
    const right = Math.min(this.x(end ?? (this.run.isActive ? Math.max(this.nowS, until) : this.nowS)), this.width);
    const { context, colours } = this;
    context.font = `600 11px ${this.font}`;
    const words = retired ? ["retired"]
      : end === null && Number.isFinite(until) ? [`quarantined until ${until.toFixed(1)} s`, "quarantined"] : ["quarantined"];
    const text = words.find((it) => context.measureText(it).width + 10 < right - x);
    if (!text) return;
    const width = context.measureText(text).width;
    context.fillStyle = colours.panel;
    context.fillRect(x - 3, top + this.row / 2 - 8, width + 6, 15);
    context.fillStyle = colours.text;
    context.textBaseline = "middle";
    context.fillText(text, x, top + this.row / 2);
  }

  /** Where the bars are forgotten: how busy the lane was, as the height of the ground. */
  drawHistory(lane, until, top) {
    const history = this.run.history;
    if (!history) return;
    const { context, colours } = this;
    const first = Math.max(0, Math.floor(this.left / BUCKET_S));
    const last = Math.floor(Math.min(until, this.nowS) / BUCKET_S);
    for (let bucket = first; bucket <= last; bucket += 1) {
      const place = history.place(lane.number, bucket);
      if (place < 0) continue;
      const from = bucket * BUCKET_S;
      const to = Math.min(from + BUCKET_S, until);
      const busy = Math.min(1, history.busy[place] / BUCKET_S);
      const [x, width] = [this.x(from), (to - from) * this.pixelsPerS];
      if (busy > 0 && width > 0) {
        context.globalAlpha = 0.55;
        context.fillStyle = colours.work;
        context.fillRect(x, top + this.bar * (1 - busy), width + 0.3, this.bar * busy);
        context.globalAlpha = 1;
      }
      const kinds = history.kinds[place];
      if (kinds & (1 << SPECULATIVE)) this.brush.mark("speculative", x + width / 2, top, this.bar);
      if (kinds & (1 << STEAL)) this.brush.mark("steal", x + width / 2, top, this.bar);
      if (kinds & (1 << FAILURE)) this.brush.mark("failure", x + width / 2, top, this.bar);
    }
  }

  drawBars(lane, top) {
    const { bars } = lane;
    const edge = this.left;
    const end = this.clipAt;
    let filledTo = -1;
    for (let age = 0; age < bars.length; age += 1) {
      const at = bars.index(age);
      const until = Math.min(bars.until[at], end);
      if (until < edge || bars.from[at] > end) continue;
      const x = Math.max(this.labels - 2, this.x(bars.from[at]));
      const right = this.x(until);
      const kind = bars.kind[at];
      // Thousands of chunks in a pixel are one rectangle.
      if (kind === WORK && right < filledTo) continue;
      this.brush.bar(kind, x, right - x, top, this.bar);
      if (kind === WORK) filledTo = Math.max(filledTo, Math.min(right, x + 0.5));
    }
  }

  drawInHand(lane, top) {
    const { inHand } = lane;
    if (inHand.length === 0 || !this.run.isActive) return;
    const chunk = inHand[0];
    const x = Math.max(this.labels - 2, this.x(Math.max(chunk.since_s, lane.doneUntil)));
    const now = this.x(this.nowS);
    if (now > x) this.brush.bar(KIND_NUMBER.get(chunk.kind) ?? WORK, x, now - x, top, this.bar, 0.55);
    if (inHand.length > 1) {
      const { context, colours } = this;
      context.font = `11px ${this.font}`;
      context.fillStyle = colours.muted;
      context.textBaseline = "middle";
      context.fillText(`+${inHand.length - 1}`, now + 6, top + this.bar / 2);
    }
  }

  /** What is under the pointer, in words. */
  at(x, y) {
    const row = this.rows[Math.floor((y - AXIS + this.scroll.scrollTop) / this.row)];
    if (!row || y < AXIS || !this.pixelsPerS) return null;
    const { lane, name } = row;
    if (x < this.labels) return [name, stateInWords(lane.state, this.nowS)];
    const seconds = this.left + (x - this.labels) / this.pixelsPerS;
    const slack = 3 / this.pixelsPerS;
    const { bars } = lane;
    for (let age = bars.length - 1; age >= 0; age -= 1) {
      const i = bars.index(age);
      if (bars.from[i] - slack <= seconds && seconds <= bars.until[i] + slack) {
        const [kind, took] = [KINDS[bars.kind[i]], time(bars.until[i] - bars.from[i])];
        const items = bars.items[i] === 0 ? "" : `items ${count(bars.first[i])}..${count(bars.first[i] + bars.items[i])}`;
        return [`${name}: ${KIND_NAMES[kind]}`, items, `${took}, until ${bars.until[i].toFixed(3)} s`];
      }
    }
    const quarantine = lane.quarantines.findLast((it) => it.from <= seconds && seconds <= (it.end ?? Infinity));
    if (quarantine) {
      const end = quarantine.end === null ? "still lasting" : `until ${quarantine.end.toFixed(2)} s`;
      return [`${name}: ${quarantine.retired ? "retired" : "quarantined"}`, `from ${quarantine.from.toFixed(2)} s`, end];
    }
    const chunk = lane.inHand[0];
    if (chunk && seconds >= chunk.since_s && seconds <= this.nowS) {
      const items = `items ${count(chunk.first)}..${count(chunk.first + chunk.items)}`;
      return [`${name}: ${KIND_NAMES[chunk.kind]}, in hand`, items, `since ${chunk.since_s.toFixed(3)} s`];
    }
    const place = this.run.history?.place(lane.number, Math.floor(seconds / BUCKET_S)) ?? -1;
    if (place >= 0 && this.run.history.busy[place] > 0 && seconds < bars.since()) {
      return [name, `busy ${percent(Math.min(1, this.run.history.busy[place] / BUCKET_S), 0)} of the time`];
    }
    return null;
  }

  showTooltip(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const lines = this.run ? this.at(x, y) : null;
    this.tooltip.hidden = lines === null;
    if (lines === null) return;
    reuse(this.tooltip, lines.filter((line) => line !== ""), () => make("div"), (element, line) => setText(element, line));
    const width = this.tooltip.offsetWidth;
    this.tooltip.style.left = `${Math.max(4, Math.min(x + 14, this.width - width - 4))}px`;
    this.tooltip.style.top = `${y + 14}px`;
  }
}
