// How states and kinds of bars look in the chart and its legend: each by a shape or a texture of its own as well as by colour.

/** The names of the kinds, as the legend and the tooltip have them. */
const KIND_NAMES = {
  work: "chunk", speculative: "speculative copy", steal: "stolen items", canary: "canary",
  dropped: "dropped", failure: "failure", preparation: "preparation",
};

/** Patterns that fill bars and spans. */
function patternsOf(colours) {
  return {
    speculative: pattern(colours.speculative, 0.35, 6, (it) => stripes(it, 6, 2)),
    steal: pattern(colours.steal, 0.35, 4, (it) => it.fillRect(0, 0, 4, 1.5)),
    preparation: pattern(colours.preparation, 0.2, 4, (it) => it.fillRect(1, 1, 1.5, 1.5)),
    dropped: pattern(colours.dropped, 0.15, 6, (it) => stripes(it, 6, 1, true)),
    quarantine: pattern(colours.quarantine, 0.14, 8, (it) => stripes(it, 8, 1.4)),
    retired: pattern(colours.bad, 0.1, 8, (it) => {
      stripes(it, 8, 1);
      stripes(it, 8, 1, true);
    }),
  };
}

/** A pattern: a light ground, and a texture of tiles of this size. */
function pattern(colour, ground, size, texture) {
  const area = make("canvas", { attributes: { width: 24, height: 24 } });
  const context = area.getContext("2d");
  context.fillStyle = context.strokeStyle = colour;
  context.globalAlpha = ground;
  context.fillRect(0, 0, 24, 24);
  context.globalAlpha = 0.9;
  for (let x = 0; x < 24; x += size) {
    for (let y = 0; y < 24; y += size) {
      context.save();
      context.beginPath();
      context.rect(x, y, size, size);
      context.clip();
      context.translate(x, y);
      texture(context);
      context.restore();
    }
  }
  return context.createPattern(area, "repeat");
}

function stripes(context, size, width, isMirrored = false) {
  context.lineWidth = width;
  context.beginPath();
  for (const shift of [-size, 0, size]) {
    const [from, to] = isMirrored ? [shift, shift + size] : [shift + size, shift];
    context.moveTo(from, 0);
    context.lineTo(to, size);
  }
  context.stroke();
}

function clock(seconds) {
  const whole = Math.floor(seconds);
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** A text that fits a width. Ids of devices differ at their ends. */
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let cut = text;
  while (cut.length > 1 && context.measureText(`…${cut}`).width > width) cut = cut.slice(Math.max(1, Math.ceil(cut.length / 12)));
  return `…${cut}`;
}

/** Draws bars, spans and marks. */
class Brush {
  constructor(context, colours) {
    Object.assign(this, { context, colours, patterns: patternsOf(colours) });
  }

  /** A bar. Its texture and its mark tell the kind as well as its colour does. */
  bar(kind, x, width, top, height, alpha = 1) {
    const { context, colours } = this;
    const name = KINDS[kind];
    const gap = width > 3 ? 1 : 0;
    const shown = Math.max(width - gap, kind === WORK ? Math.min(width, 0.5) : 1.5);
    context.globalAlpha = alpha;
    if (kind === WORK) {
      context.fillStyle = colours.work;
      context.fillRect(x, top, shown, height);
    } else if (kind === FAILURE) {
      context.fillStyle = colours.failure;
      context.fillRect(x, top, shown, height);
      this.mark(name, x + shown, top, height);
    } else if (kind === CANARY) {
      context.strokeStyle = colours.canary;
      context.lineWidth = 2;
      context.strokeRect(x + 1, top + 1, Math.max(1, shown - 2), height - 2);
      this.mark(name, x + shown / 2, top, height);
    } else {
      context.fillStyle = this.patterns[name];
      context.fillRect(x, top, shown, height);
      context.strokeStyle = colours[name];
      context.lineWidth = 1;
      if (kind === DROPPED) context.setLineDash([3, 2]);
      if (shown > 3) context.strokeRect(x + 0.5, top + 0.5, shown - 1, height - 1);
      context.setLineDash([]);
      if (kind === SPECULATIVE || kind === STEAL) this.mark(name, x + 1, top, height);
    }
    context.globalAlpha = 1;
  }

  /** A span without work: quarantined or retired. */
  span(isRetired, x, width, top, height) {
    const { context, colours, patterns } = this;
    context.fillStyle = isRetired ? patterns.retired : patterns.quarantine;
    context.fillRect(x, top, width, height);
    context.fillStyle = isRetired ? colours.bad : colours.quarantine;
    context.fillRect(x, top, width, 2);
    context.fillRect(x, top + height - 2, width, 2);
  }

  /** The mark of a kind, visible however narrow the bar is. */
  mark(kind, x, top, height) {
    const { context, colours } = this;
    context.globalAlpha = 1;
    context.beginPath();
    if (kind === "failure") {
      // A cross on a ground of its own, at the end of the bar that failed.
      context.fillStyle = colours.failure;
      context.fillRect(x - 7, top - 1, 14, height + 2);
      context.strokeStyle = colours["on-bar"];
      context.lineWidth = 2;
      cross(context, x, top + height / 2, 4);
    } else if (kind === "canary") {
      context.fillStyle = colours.canary;
      context.arc(x, top + height / 2, 3, 0, 7);
      context.fill();
    } else if (kind === "speculative") {
      // Pointing down, to another lane's chunk.
      context.fillStyle = colours.speculative;
      context.moveTo(x - 1, top - 3);
      context.lineTo(x + 8, top - 3);
      context.lineTo(x + 3.5, top + 3);
      context.fill();
    } else if (kind === "steal") {
      // Pointing to the right: the items go on here.
      context.fillStyle = colours.steal;
      context.moveTo(x, top - 4);
      context.lineTo(x + 7, top);
      context.lineTo(x, top + 4);
      context.fill();
    }
  }

  /** A disc for a healthy lane, a triangle for a quarantined one, a cross for a retired one. */
  state(state, x, y) {
    const { context, colours } = this;
    context.beginPath();
    if (state === "healthy") {
      context.fillStyle = colours.ok;
      context.arc(x, y, 3.5, 0, 7);
      context.fill();
    } else if (state === "quarantined") {
      context.fillStyle = colours.warn;
      context.moveTo(x, y - 5);
      context.lineTo(x + 5, y + 4);
      context.lineTo(x - 5, y + 4);
      context.fill();
    } else {
      context.strokeStyle = colours.bad;
      context.lineWidth = 2.5;
      cross(context, x, y, 4);
    }
  }
}

function cross(context, x, y, size) {
  context.moveTo(x - size, y - size);
  context.lineTo(x + size, y + size);
  context.moveTo(x + size, y - size);
  context.lineTo(x - size, y + size);
  context.stroke();
}

/** The legend of the chart, in these colours. */
function showLegend(colours) {
  const scale = Math.min(devicePixelRatio || 1, 2);
  const [width, height, bar] = [26, 22, 16];
  const entries = [...KINDS.map((kind) => [kind, KIND_NAMES[kind]]), ["quarantine", "quarantined"], ["retired", "retired"]];
  byId("legend").replaceChildren(...entries.map(([kind, name]) => {
    const canvas = make("canvas", { attributes: { width: width * scale, height: height * scale, "aria-hidden": "true" } });
    const context = canvas.getContext("2d");
    const brush = new Brush(context, colours);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    if (!KIND_NUMBER.has(kind)) brush.span(kind === "retired", 0, width, 2, height - 4);
    else if (kind === "failure") brush.bar(FAILURE, -6, width - 1, 3, bar);
    else brush.bar(KIND_NUMBER.get(kind), 0, width + 1, 3, bar);
    return make("li", {}, canvas, make("span", { text: name }));
  }));
}

function stateInWords(state, now) {
  if (state.is === "quarantined") {
    return state.until_s > now ? `quarantined, tried again in ${time(state.until_s - now)}` : "quarantined, about to be tried again";
  }
  return state.is === "retired" ? "retired: no more work in this run" : "healthy";
}
