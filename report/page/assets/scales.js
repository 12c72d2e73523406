// Numbers to pixels, numbers to text, and elements. User text is never parsed as markup.

const NS = "http://www.w3.org/2000/svg";

function made(tag, attributes, parent, text) {
  const element = ["svg", "g", "path", "line", "rect", "text", "circle", "title"].includes(tag)
    ? document.createElementNS(NS, tag) : document.createElement(tag);
  for (const name in attributes) if (attributes[name] !== undefined) element.setAttribute(name, attributes[name]);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

const ENTITIES = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'", "&#39;": "'", "&amp;": "&" };

function decoded(text) {
  return String(text).replace(/&(?:lt|gt|quot|amp|#x27|#39);/g, (found) => ENTITIES[found]);
}

// Plotly's text: <b>, <br> and <span> are markup, everything else is text.
function write(parent, text) {
  let into = parent;
  for (const part of String(text).split(/(<\/?(?:b|br|span|extra)(?: [^>]*)?>)/)) {
    if (part === "<br>") into.append(document.createElement("br"));
    else if (part === "<b>") into = made("b", {}, into);
    else if (part.startsWith("<span")) into = made("span", { class: "quiet" }, into);
    else if (part === "</b>" || part === "</span>") into = into === parent ? parent : into.parentNode;
    else if (part && !part.startsWith("<extra") && part !== "</extra>") into.append(decoded(part));
  }
}

function plainly(text) {
  return decoded(String(text).replace(/<br>/g, " ").replace(/<\/?(?:b|span)(?: [^>]*)?>/g, ""));
}

function short(value, digits = 4) {
  if (typeof value !== "number" || !Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-4 ? value.toExponential(Math.max(0, digits - 1)) : value.toPrecision(digits);
  return text.includes("e") ? text.replace(/\.?0+e/, "e").replace("e+", "e")
    : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

// A position in a training, or a large number at an axis: 1,200, 10.49M, 2.1B.
function position(value) {
  const [least, name] = Math.abs(value) >= 1e9 ? [1e9, "B"] : Math.abs(value) >= 1e6 ? [1e6, "M"] : [1, ""];
  return Number(short(value / least, name ? 4 : 6)).toLocaleString("en-US", { maximumFractionDigits: 6 }) + name;
}

// Fill in "%{y:.4~g}", "%{meta[0]}", "%{customdata[1]}" once; inserted text is not filled in again.
function filled(template, point) {
  return template.replace(/%\{([a-z]+)((?:\[\d+\])*)(?::([^}]*))?\}/g, (all, name, path, format) => {
    let value = point[name];
    for (const index of path.match(/\d+/g) || []) value = value === undefined || value === null ? undefined : value[index];
    if (value === undefined || value === null) return "";
    if (format === "," && typeof value === "number") return position(value);
    const digits = format && /\.(\d)/.exec(format);
    if (format && format.endsWith("f")) return Number(value).toFixed(digits ? +digits[1] : 0);
    if (format && format.endsWith("%")) return (100 * value).toFixed(digits ? +digits[1] : 0) + "%";
    return typeof value === "number" ? short(value, digits ? +digits[1] : 6) : value;
  });
}

// Text within a width in pixels. Longer text is `brief` and ends in an ellipsis, and the tooltip has the full text.
function titled(attributes, parent, text, width, widest = 9, brief = text) { // widest: pixels of a letter, assumed because measuring forces a layout
  const told = made("text", attributes, parent, text);
  if (text.length * widest <= width || told.getComputedTextLength() <= width) return;
  told.textContent = brief;
  let kept = brief.length;
  for (let long; kept > 3 && (long = told.getComputedTextLength()) > width;) {
    kept = Math.max(3, Math.min(kept - 1, Math.floor(kept * width / long)));
    told.textContent = brief.slice(0, kept) + "\u2026";
  }
  made("title", {}, told, text);
}

// The theme's colour for a colour of haltune's palette.
function ink(colour) {
  return haltune.colours[colour] || colour;
}

// Convert any CSS colour to #rrggbb, which all SVG programs support.
const hex = (() => {
  let pen = null;
  const known = new Map();
  return (colour) => {
    pen ||= made("canvas", { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
    if (!known.has(colour)) {
      pen.fillStyle = colour; pen.clearRect(0, 0, 1, 1); pen.fillRect(0, 0, 1, 1);
      known.set(colour, `#${[...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part.toString(16).padStart(2, "0")).join("")}`);
    }
    return known.get(colour);
  };
})();

function between(scale, share) {
  if (!Number.isFinite(share)) return "var(--rule)";
  share = Math.min(1, Math.max(0, share));
  let k = 1;
  while (k < scale.length - 1 && scale[k][0] < share) k++;
  const [low, from] = scale[k - 1], [high, to] = scale[k];
  const part = Math.round(100 * (high > low ? (share - low) / (high - low) : 1));
  return `color-mix(in oklab, ${ink(to)} ${part}%, ${ink(from)})`;
}

// Download a file, named after the page's title and the contents.
function download(ending, type, ...parts) {
  const href = URL.createObjectURL(new Blob(parts, { type }));
  made("a", { href, download: `${document.title} ${ending}`.replace(/[^\p{L}\p{N}._-]+/gu, "_").slice(-100) }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
}

// A notebook's frame must not save files.
const saves = () => document.querySelector("meta[name=haltune-cell]") === null;

// Buttons that copy the JSON in data-config, also as a Python dict if the two differ (true and True).
function copies(place) {
  const json = place.dataset.config, words = { true: "True", false: "False", null: "None" };
  const python = json.replace(/"(?:[^"\\]|\\.)*"|true|false|null/g, (found) => words[found] || found);
  for (const [name, text] of json === python ? [["Copy", json]] : [["Copy as Python", python], ["Copy as JSON", json]]) {
    const button = made("button", { type: "button" }, place, name);
    button.addEventListener("click", async (event) => {
      event.stopPropagation();
      button.textContent = await copied(text) ? "Copied" : "The browser does not allow it";
      setTimeout(() => { button.textContent = name; }, 2000);
    });
  }
}

async function copied(text) {
  try { await navigator.clipboard.writeText(text); return true; } catch { /* not over http, nor in a frame */ }
  const held = document.activeElement, area = made("textarea", {}, document.body);
  area.value = text; area.select();
  const done = document.execCommand("copy");
  area.remove(); held.focus({ preventScroll: true });
  return done;
}

class Axis {
  constructor(layout, known) { // known: returns all values; called only if needed
    this.layout = layout || {};
    this.log = this.layout.type === "log";
    const range = this.layout.range, given = range && range.length === 2 && range.every((v) => v !== null && Number.isFinite(+v));
    const values = given && this.layout.type !== "category" ? [] : known();
    this.categories = this.layout.type === "category" || values.some((v) => typeof v === "string")
      ? [...(this.layout.categoryarray || []), ...values].map(String).filter((v, i, all) => all.indexOf(v) === i) : null;
    this.index = this.categories && new Map(this.categories.map((name, i) => [name, i]));
    this.home = given ? range.map(Number) : this.auto(values);
    if (this.layout.autorange === "reversed") this.home = [this.home[1], this.home[0]];
    this.range = this.home.slice();
  }
  auto(values) {
    if (this.categories) return [-0.5, this.categories.length - 0.5];
    const known = values.map((v) => this.unit(v)).filter(Number.isFinite);
    let low = known.reduce((a, b) => Math.min(a, b), Infinity), high = known.reduce((a, b) => Math.max(a, b), -Infinity);
    if (low > high) return [0, 1];
    if (this.layout.rangemode === "tozero" && !this.log) { low = Math.min(0, low); high = Math.max(0, high); }
    const pad = low === high ? Math.abs(low) * 0.05 || 0.5 : 0.04 * (high - low);
    return [this.layout.rangemode === "tozero" && low === 0 ? 0 : low - pad, high + pad];
  }
  unit(value) {
    if (value === null || value === undefined) return NaN;
    if (this.index) return this.index.has(String(value)) ? this.index.get(String(value)) : NaN;
    return this.log ? (value > 0 ? Math.log10(value) : NaN) : Number(value);
  }
  place(from, to) { this.from = from; this.to = to; }
  px(value) { return this.at(this.unit(value)); }
  at(unit) { // clipped to the range of SVG: diverged values may be 1e300 pixels away
    return Math.max(-1e6, Math.min(1e6, this.from + (this.to - this.from) * (unit - this.range[0]) / (this.range[1] - this.range[0])));
  }
  back(px) { return this.range[0] + (this.range[1] - this.range[0]) * (px - this.from) / (this.to - this.from); }
  ticks(room) {
    const [low, high] = [Math.min(...this.range), Math.max(...this.range)];
    const inside = (u) => u >= low - 1e-9 * (high - low) && u <= high + 1e-9 * (high - low);
    if (this.layout.tickvals) {
      const texts = this.layout.ticktext || this.layout.tickvals.map((v) => short(v));
      return this.layout.tickvals.map((v, i) => [this.unit(v), plainly(texts[i])]).filter(([u]) => inside(u));
    }
    if (this.categories) {
      const step = Math.max(1, Math.ceil(this.categories.length / room));
      return this.categories.map((name, i) => [i, plainly(name)]).filter(([i]) => i % step === 0 && inside(i));
    }
    if (this.log) return logTicks(low, high, room);
    const step = this.layout.dtick && (high - low) / this.layout.dtick <= 1.5 * room ? this.layout.dtick : nice((high - low) / room);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step && found.length < 60; k++) found.push(k * step);
    const digits = Math.max(0, Math.min(12, -Math.floor(Math.log10(step) + 1e-9)));
    const text = (v) => (Math.abs(v) >= 1e6 && Math.abs(v) < 1e12 ? position(v) : Math.abs(v) >= 1e12 || (digits > 6 && v !== 0) ? short(v, 6) : Number(v.toFixed(digits)).toLocaleString("en-US", { maximumFractionDigits: digits }));
    return found.map((v) => [v, (this.layout.tickprefix || "") + text(v) + (this.layout.ticksuffix || "")]);
  }
}

function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  const rest = step / power;
  return power * (rest <= 1.0001 ? 1 : rest <= 2.0001 ? 2 : rest <= 5.0001 ? 5 : 10);
}

function logTicks(low, high, room) {
  const first = Math.floor(low), last = Math.ceil(high);
  const word = (k) => (k >= 5 || k < -3 ? `1e${k}` : short(10 ** k));
  if (high - low > 2) {
    const step = Math.max(1, Math.ceil((high - low) / room)), found = [];
    for (let k = first; k <= last; k++) if (k >= low && k <= high && (k - first) % step === 0) found.push([k, word(k)]);
    return found;
  }
  let found = [];
  for (let k = first; k <= last; k++) for (const m of [1, 2, 5]) found.push(m * 10 ** k);
  found = found.filter((v) => Math.log10(v) >= low - 1e-9 && Math.log10(v) <= high + 1e-9);
  if (found.length < 2) {
    const step = nice((10 ** high - 10 ** low) / room);
    for (let v = Math.ceil(10 ** low / step) * step; v <= 10 ** high; v += step) found.push(v);
  }
  return found.map((v) => [Math.log10(v), short(v)]);
}
