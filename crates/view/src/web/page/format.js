// Numbers and times in words, and elements with text.

const NONE = "–";
const wholeNumber = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function count(number) {
  return number === null || number === undefined ? NONE : wholeNumber.format(number);
}

/** A number with three digits and a prefix: 12.3 k. */
function short(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return NONE;
  const prefixes = ["", " k", " M", " G", " T", " P"];
  let power = 0;
  while (Math.abs(number) >= 999.5 && power < prefixes.length - 1) {
    number /= 1000;
    power += 1;
  }
  const digits = power === 0 && Number.isInteger(number) ? 0 : number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
  return number.toFixed(digits) + prefixes[power];
}

function rate(itemsPerSecond) {
  return itemsPerSecond === null || itemsPerSecond === undefined ? NONE : `${short(itemsPerSecond)}/s`;
}

function percent(fraction, digits = 1) {
  return fraction === null || fraction === undefined || !Number.isFinite(fraction)
    ? NONE : `${(fraction * 100).toFixed(digits)} %`;
}

/** A time in the unit that suits it. */
function time(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const two = (number) => String(number).padStart(2, "0");
  const whole = Math.round(seconds);
  const [days, hours] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24];
  const [minutes, rest] = [Math.floor(whole / 60) % 60, whole % 60];
  if (days > 0) return `${days} d ${two(hours)} h`;
  if (hours > 0) return `${hours} h ${two(minutes)} min`;
  return `${minutes} min ${two(rest)} s`;
}

/** The efficiency, as reports have it. */
function efficiency(number) {
  return number === null || number === undefined ? NONE : number.toFixed(3);
}

/** The guaranteed efficiency is rounded down, as reports have it. */
function guaranteed(bound) {
  return bound === null || bound === undefined ? null : `guaranteed ≥ ${(Math.floor(bound * 1e3) / 1e3).toFixed(3)}`;
}

/** A device's memory: how much of it is in use, if that is known. */
function memory(used, all) {
  if (all === null || all === undefined) return NONE;
  const [unit, name, digits] = all >= 2 ** 30 ? [2 ** 30, "GiB", 1] : [2 ** 20, "MiB", 0];
  const of = used === null ? "" : `${(used / unit).toFixed(digits)} of `;
  return `${of}${(all / unit).toFixed(digits)} ${name}`;
}

/** A text about a device without the device's name before it. */
function withoutName(id, text) {
  return text.startsWith(`${id}: `) ? text.slice(id.length + 2) : text;
}

const clockOfDay = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
function timeOfDay(unixSeconds) {
  return clockOfDay.format(new Date(unixSeconds * 1000));
}

function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Finds an element of the page by its id. */
function byId(id) {
  return document.getElementById(id);
}

/** Makes an element. Names of devices and tasks are whatever a program says: they only ever become text. */
function make(name, { className, text, attributes = {} } = {}, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  element.append(...children);
  return element;
}

/** Sets a text only if it is another one: elements that do not change are not laid out again, nor read out again. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setAttribute(element, name, value) {
  if (value === null) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== value) {
    element.setAttribute(name, value);
  }
}

/** Makes the children of an element as many as needed, and updates each. */
function reuse(parent, things, makeOne, update) {
  while (parent.children.length > things.length) parent.lastElementChild.remove();
  while (parent.children.length < things.length) parent.append(makeOne());
  things.forEach((thing, i) => update(parent.children[i], thing, i));
}

/** The same for things with a key of their own. Elements whose thing is still there stay in the page, with what a user has
 *  opened or focused in them. */
function reuseByKey(parent, things, keyOf, makeOne, update = () => {}) {
  const keys = new Set(things.map((thing) => String(keyOf(thing))));
  const known = new Map();
  for (const element of [...parent.children]) {
    if (keys.has(element.dataset.key)) known.set(element.dataset.key, element);
    else element.remove();
  }
  let next = parent.firstElementChild;
  for (const thing of things) {
    const key = String(keyOf(thing));
    let element = known.get(key);
    if (element === undefined) {
      element = makeOne(thing);
      element.dataset.key = key;
    }
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
    update(element, thing);
  }
}
