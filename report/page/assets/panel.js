// One pair of axes with what is drawn between them: the part of Plotly's traces that haltune.report uses, as SVG.

const DASHES = { dash: "7 4", dot: "2 3", dashdot: "7 3 2 3" };
const NEAR = 24; // pixels
const PLACED = new WeakMap(); // trace -> where it stood when it was drawn last

function symbol(name, x, y, r) {
  const kind = name.replace("-open", "");
  if (kind === "square") return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
  if (kind === "diamond") return `M${x} ${y - 1.3 * r}l${1.3 * r} ${1.3 * r}l${-1.3 * r} ${1.3 * r}l${-1.3 * r} ${-1.3 * r}z`;
  if (kind === "triangle-down") return `M${x - 1.1 * r} ${y - r}h${2.2 * r}l${-1.1 * r} ${2 * r}z`;
  if (kind === "line-ns") return `M${x} ${y - r}v${2 * r}`;
  const cross = `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x + r} ${y - r}l${-2 * r} ${2 * r}`;
  if (kind === "x-thin") return cross;
  const ring = `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
  return kind === "circle-x" ? ring + `M${x - .7 * r} ${y - .7 * r}l${1.4 * r} ${1.4 * r}M${x + .7 * r} ${y - .7 * r}l${-1.4 * r} ${1.4 * r}` : ring;
}

const each = (value, i) => (Array.isArray(value) ? value[i] : value);
const hollow = (name) => /open|x-thin|line-/.test(name || "");

// What is drawn on: a picture, above it what points at it, and a tip.
class Sheet {
  constructor(figure, element) {
    this.figure = figure; this.element = element;
    this.svg = made("svg", { role: "img" }, element);
    this.above = made("svg", { class: "above", "aria-hidden": "true" }, element); // drawn by itself: what lies below is not drawn again
    this.tip = made("div", { class: "tip", hidden: "" }, element);
  }
  clear(width, height) {
    this.width = width; this.height = height;
    for (const svg of [this.svg, this.above]) {
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.style.height = `${height}px`;
      svg.replaceChildren();
    }
    this.svg.setAttribute("aria-label", this.figure.alt);
    this.over = made("g", {}, this.above);
  }
  where(event) {
    const box = this.svg.getBoundingClientRect();
    return [(event.clientX - box.left) * this.width / box.width, (event.clientY - box.top) * this.height / box.height];
  }
}

class Panel extends Sheet {
  constructor(figure, element, xkey, ykey) {
    super(figure, element);
    this.keys = [xkey, ykey]; this.svg.tabIndex = 0;
    this.svg.addEventListener("pointermove", (event) => this.moved(event));
    this.svg.addEventListener("pointerdown", (event) => this.pressed(event));
    this.svg.addEventListener("pointerup", (event) => this.released(event));
    this.svg.addEventListener("pointerleave", () => { if (!this.start) this.leave(); });
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("dblclick", () => this.reset());
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }
  axes() {
    const layout = this.figure.layout, name = (k) => layout[k === "x" || k === "y" ? `${k}axis` : `${k[0]}axis${k.slice(1)}`];
    const ends = (along) => () => this.drawn.flatMap((t) => this.values(t, along));
    this.x = new Axis(name(this.keys[0]), ends("x"));
    this.y = new Axis({ ...name(this.keys[1]), ...(this.figure.logs[this.keys[1]] !== undefined ? { type: this.figure.logs[this.keys[1]] ? "log" : "linear", range: undefined } : {}) }, ends("y"));
    if (this.zoomed) { this.x.range = this.zoomed[0].slice(); this.y.range = this.zoomed[1].slice(); }
  }
  values(t, along) {
    let found = t[along] || [];
    const error = t[`error_${along}`];
    if (error && error.array) found = found.flatMap((v, i) => [v - error.array[i], v + error.array[i]]);
    if (t.type === "bar" && (t.orientation === "h") === (along === "x")) {
      found = found.map((v, i) => v + (each(t.base, i) || 0)).concat(t.base === undefined ? [0] : [].concat(t.base));
    }
    return found;
  }
  mine() {
    return this.figure.traces().filter((t) => (t.xaxis || "x") === this.keys[0] && (t.yaxis || "y") === this.keys[1]);
  }
  draw(width, height) {
    this.clear(width, height);
    this.drawn = this.mine();
    this.axes();
    const empty = !this.drawn.length; // then no number says anything
    const ys = empty ? [] : this.y.ticks(Math.max(2, height / (this.y.categories ? 18 : 48)));
    const label = Math.min(150, ys.reduce((w, [, text]) => Math.max(w, 7 * text.length), 8));
    const named = (axis) => axis.layout.title && axis.layout.title.text;
    const many = this.figure.panels.length > 1;
    const left = label + 12, top = named(this.y) ? 26 : 12, bottom = height - (named(this.x) ? 44 : 26), right = width - 12;
    this.x.place(left, right); this.y.place(bottom, top);
    this.frame = { left, top, right, bottom };
    const clip = `clip-${this.figure.id}-${this.keys.join("")}`;
    const defs = document.createElementNS(NS, "clipPath");
    defs.id = clip; made("rect", { x: left - 8, y: top - 8, width: right - left + 16, height: bottom - top + 16 }, defs); this.svg.append(defs);
    const grid = made("g", {}, this.svg);
    for (const [u, text] of ys) {
      const y = this.y.at(u);
      made("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }, grid);
      titled({ x: left - 8, y: y + 4, "text-anchor": "end" }, grid, text, label + 4, 7);
    }
    const room = Math.max(2, (right - left) / 70);
    for (const [u, text] of empty ? [] : this.x.ticks(room)) {
      const x = this.x.at(u), size = Math.max(3, Math.floor((right - left) / 7 / Math.max(1, this.x.categories ? this.x.categories.length : 1)));
      made("line", { class: "grid", x1: x, x2: x, y1: bottom, y2: bottom + 4 }, grid);
      made("text", { x, y: bottom + 18, "text-anchor": "middle" }, grid, this.x.categories && text.length > size ? text.slice(0, size - 1) + "\u2026" : text);
    }
    if (named(this.x)) titled({ class: many ? "title" : "", x: (left + right) / 2, y: bottom + 37, "text-anchor": "middle" }, grid, plainly(this.x.layout.title.text), right - left);
    if (named(this.y)) titled({ class: many ? "title" : "", x: 0, y: 12 }, grid, plainly(this.y.layout.title.text), width);
    this.plot = made("g", { "clip-path": `url(#${clip})` }, this.svg);
    this.kept = []; this.pointed = null;
    this.contents();
    this.light(this.figure.page.litTrial);
  }
  contents() {
    let batch = null;
    const scale = [this.x, this.y].map((axis) => [axis.from, axis.to, ...axis.range, axis.log, axis.categories]).join();
    const flush = () => { if (batch) this.path(batch.d, batch.line, batch.opacity); batch = null; };
    for (const shape of this.figure.layout.shapes || []) this.shape(shape);
    for (const t of this.drawn) {
      if (t.type === "heatmap") { flush(); this.heat(t); continue; }
      if (t.type === "contour") { flush(); this.contour(t); continue; }
      if (t.type === "bar") { flush(); this.bars(t); continue; }
      const mode = t.mode || "lines", { xs, ys, d } = this.placed(t, scale);
      if (t.hoverinfo !== "skip") this.kept.push({ t, xs, ys });
      if (mode.includes("lines")) {
        const line = t.line || {}, key = JSON.stringify([line, t.opacity]);
        if (t.fill && !d) continue;
        if (t.fill) { flush(); const area = made("path", { d: d + "z", stroke: "none" }, this.plot); area.style.fill = ink(t.fillcolor); area.style.fillOpacity = t.opacity ?? 1; continue; }
        if (batch && batch.key === key) batch.d += d;
        else { flush(); batch = { d, line, key, opacity: t.opacity }; }
      }
      if (mode.includes("markers")) { flush(); this.errors(t, xs, ys); this.markers(t, xs, ys); }
      if (mode.includes("text")) { flush(); this.texts(t, xs, ys); }
    }
    flush();
    for (const note of this.figure.layout.annotations || []) this.note(note);
  }
  placed(t, scale) { // a curve that did not change stands where it stood, in a thousand of them
    const known = PLACED.get(t);
    if (known && known.scale === scale) return known;
    const xs = t.x.map((v) => this.x.px(v)), ys = t.y.map((v) => this.y.px(v));
    const found = { scale, xs, ys, d: (t.mode || "lines").includes("lines") ? lineOf(xs, ys, t.line && t.line.shape) : "" };
    PLACED.set(t, found);
    return found;
  }
  path(d, line, opacity) {
    const path = made("path", { d, fill: "none", "stroke-linejoin": "round", "stroke-width": line.width || 2, "stroke-dasharray": DASHES[line.dash] }, this.plot);
    path.style.stroke = ink(line.color || "#1c2530");
    if (opacity !== undefined) path.style.opacity = opacity;
  }
  markers(t, xs, ys) {
    const marker = t.marker || {}, lists = [marker.color, marker.size, marker.symbol].some(Array.isArray), groups = new Map();
    xs.forEach((x, i) => {
      if (!Number.isFinite(x) || !Number.isFinite(ys[i])) return;
      const name = each(marker.symbol, i) || "circle", size = each(marker.size, i) || 6;
      let colour = each(marker.color, i) ?? "#5f6b78";
      if (typeof colour === "number") colour = this.coloured(marker, colour);
      const key = lists ? `${name} ${colour}` : "";
      if (!groups.has(key)) groups.set(key, { name, colour, d: "" });
      groups.get(key).d += symbol(name, x, ys[i], size / 2);
    });
    for (const { name, colour, d } of groups.values()) {
      const path = made("path", { d, "stroke-width": (marker.line && marker.line.width) ?? (hollow(name) ? 1.6 : 0) }, this.plot);
      path.style.fill = hollow(name) ? "none" : ink(colour);
      path.style.stroke = ink(hollow(name) ? colour : each(marker.line && marker.line.color, 0) || colour);
      if (marker.opacity !== undefined) path.style.opacity = marker.opacity;
    }
  }
  coloured(marker, value) {
    const known = [].concat(marker.color).filter(Number.isFinite);
    const low = marker.cmin ?? Math.min(...known), high = marker.cmax ?? Math.max(...known);
    return between(marker.colorscale, high > low ? (value - low) / (high - low) : 1);
  }
  errors(t, xs, ys) {
    for (const [along, axis] of [["error_x", this.x], ["error_y", this.y]]) {
      if (!t[along] || !t[along].array) continue;
      let d = "";
      t[along].array.forEach((e, i) => {
        const v = along === "error_x" ? t.x[i] : t.y[i], a = axis.px(v - e), b = axis.px(v + e);
        if ([a, b, xs[i], ys[i]].every(Number.isFinite)) d += along === "error_x" ? `M${a} ${ys[i]}H${b}` : `M${xs[i]} ${a}V${b}`;
      });
      this.path(d, { color: t[along].color || "#5f6b78", width: t[along].thickness || 1 });
    }
  }
  texts(t, xs, ys) {
    const place = t.textposition || "middle center", side = place.includes("right") ? 1 : place.includes("left") ? -1 : 0;
    xs.forEach((x, i) => {
      const text = plainly(each(t.text, i) ?? "");
      if (!text || !Number.isFinite(x) || !Number.isFinite(ys[i])) return;
      const way = side > 0 && x + 7 + 7 * text.length > this.frame.right + 8 ? -1 : side; // within the frame
      made("text", { class: "halo", x: x + 7 * way, y: ys[i] + (place.includes("top") ? -7 : place.includes("bottom") ? 16 : 4), "text-anchor": way > 0 ? "start" : way < 0 ? "end" : "middle" }, this.plot, text);
    });
  }
  bars(t) {
    const flat = t.orientation === "h", [along, across] = flat ? [this.x, this.y] : [this.y, this.x];
    const [lengths, places] = flat ? [t.x, t.y] : [t.y, t.x], marker = t.marker || {};
    const unit = Math.abs(across.at(1) - across.at(0));
    const xs = [], ys = [];
    places.forEach((place, i) => {
      const base = each(t.base, i) || 0, a = along.px(base), b = along.px(base + lengths[i]), c = across.px(place);
      const thick = Math.max(1, Math.min(34, unit * (each(t.width, i) || 0.7)));
      xs.push(flat ? (a + b) / 2 : c); ys.push(flat ? c : (a + b) / 2);
      if (![a, b, c].every(Number.isFinite)) return;
      const box = flat ? { x: Math.min(a, b), width: Math.max(0.5, Math.abs(b - a)), y: c - thick / 2, height: thick } : { x: c - thick / 2, width: thick, y: Math.min(a, b), height: Math.max(0.5, Math.abs(b - a)) };
      const bar = made("rect", { ...box, rx: Math.min(2, thick / 4) }, this.plot);
      let colour = each(marker.color, i) ?? "#5f6b78";
      if (typeof colour === "number") colour = this.coloured(marker, colour);
      bar.style.fill = ink(colour);
      if (marker.opacity !== undefined) bar.style.opacity = each(marker.opacity, i);
      if (t.text) made("text", { x: flat ? b + 6 : c, y: flat ? c + 4 : Math.min(a, b) - 5, "text-anchor": flat ? "start" : "middle" }, this.plot, plainly(each(t.text, i)));
      this.kept.push({ t, i, x: xs[i], y: ys[i], box });
    });
    if (t.error_x || t.error_y) this.errors({ ...t, x: flat ? t.x.map((v, i) => v + (each(t.base, i) || 0)) : t.x }, xs, ys);
  }
  heat(t) {
    const edge = (axis, values, i) => {
      const u = values.map((v) => axis.unit(v)), a = i > 0 ? (u[i - 1] + u[i]) / 2 : u[0] - (u.length > 1 ? (u[1] - u[0]) / 2 : 0.5);
      const b = i < u.length - 1 ? (u[i] + u[i + 1]) / 2 : u[i] + (u.length > 1 ? (u[i] - u[i - 1]) / 2 : 0.5);
      return [axis.at(a), axis.at(b)];
    };
    const all = t.z.flat().filter(Number.isFinite), low = t.zmin ?? Math.min(...all), high = t.zmax ?? Math.max(...all);
    const columns = t.x.map((_, i) => edge(this.x, t.x, i)), rows = t.y.map((_, i) => edge(this.y, t.y, i));
    t.z.forEach((row, j) => row.forEach((z, i) => {
      if (z === null) return;
      const [a, b] = columns[i], [c, d] = rows[j];
      const cell = made("rect", { x: Math.min(a, b), y: Math.min(c, d), width: Math.abs(b - a) + 0.6, height: Math.abs(d - c) + 0.6 }, this.plot);
      cell.style.fill = between(t.colorscale, high > low ? (z - low) / (high - low) : 0.5);
      if (t.hoverinfo !== "skip") this.kept.push({ t, i, x: (a + b) / 2, y: (c + d) / 2, box: { x: Math.min(a, b), y: Math.min(c, d), width: Math.abs(b - a), height: Math.abs(d - c) }, z, text: t.text && t.text[j][i], under: true });
    }));
  }
  contour(t) { // one level: in each square of the mesh the line between the edges that it crosses
    const level = t.contours.start, xs = t.x.map((v) => this.x.px(v)), ys = t.y.map((v) => this.y.px(v));
    let d = "";
    for (let j = 0; j + 1 < ys.length; j++) for (let i = 0; i + 1 < xs.length; i++) {
      const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]].map(([a, b]) => [xs[a], ys[b], t.z[b][a] - level]);
      const found = corners.flatMap(([x, y, z], k) => {
        const [u, v, w] = corners[(k + 1) % 4];
        return (z < 0) === (w < 0) ? [] : [`${(x + (u - x) * z / (z - w)).toFixed(1)} ${(y + (v - y) * z / (z - w)).toFixed(1)}`];
      });
      for (let k = 0; k + 1 < found.length; k += 2) d += `M${found[k]}L${found[k + 1]}`;
    }
    this.path(d, t.line);
  }
  shape(shape) {
    const paper = (ref, axis, v) => (ref === "paper" ? axis.from + (axis.to - axis.from) * v : String(ref).endsWith("domain") ? axis.from + (axis.to - axis.from) * v : axis.px(v));
    if ((shape.xref || "x").split(" ")[0] !== this.keys[0] && shape.xref !== "paper") return;
    const [x0, x1] = [shape.x0, shape.x1].map((v) => paper(shape.xref, this.x, v)), [y0, y1] = [shape.y0, shape.y1].map((v) => paper(shape.yref, this.y, v));
    if (shape.type === "line") this.path(`M${x0} ${y0}L${x1} ${y1}`, shape.line || {});
    else {
      const box = made("rect", { x: Math.min(x0, x1), y: Math.min(y0, y1), width: Math.abs(x1 - x0), height: Math.abs(y1 - y0) }, this.plot);
      box.style.fill = ink(shape.fillcolor || "#e2e6ea"); box.style.fillOpacity = shape.opacity ?? 1;
    }
  }
  note(note) {
    if ((note.xref || "x") !== this.keys[0] && note.xref !== "paper") return;
    const f = this.frame, x = note.xref === "paper" ? f.left + (f.right - f.left) * note.x : this.x.px(note.x);
    const y = note.yref === "paper" ? f.bottom - (f.bottom - f.top) * note.y : this.y.px(note.y);
    if (!Number.isFinite(x) || !Number.isFinite(y) || x < f.left - 9 || x > f.right + 9 || y < f.top - 9 || y > f.bottom + 9) return;
    const font = note.font || {}, anchor = { left: "start", right: "end" }[note.xanchor] || "middle";
    const text = made("text", { x: x + (note.xshift || 0), y: y - (note.yshift || 0) + (note.yanchor === "top" ? 14 : note.yanchor === "bottom" ? -2 : 5), "text-anchor": anchor, "font-weight": /<b>/.test(note.text) ? 650 : 400 }, this.plot, plainly(note.text));
    text.style.fontSize = `${font.size || 12}px`; text.style.fill = ink(font.color || "#5f6b78");
  }
  get points() { // made for who walks along them
    if (this.pointed) return this.pointed;
    const found = this.pointed = [];
    for (const part of this.kept) {
      if (!part.xs) { found.push(part); continue; }
      const { t, xs, ys } = part;
      for (let i = 0; i < xs.length; i++) if (Number.isFinite(xs[i]) && Number.isFinite(ys[i])) found.push({ t, i, x: xs[i], y: ys[i] });
    }
    return found;
  }

  // -- pointing at it ---------------------------------------------------------------------------

  nearest(px, py) {
    let best = null, least = NEAR * NEAR;
    const f = this.frame;
    const look = (p) => {
      if (p.x < f.left - 9 || p.x > f.right + 9) return;
      const dx = p.x - px, dy = p.y - py;
      let far = dx * dx + dy * dy;
      if (p.box && px >= p.box.x && px <= p.box.x + p.box.width && py >= p.box.y && py <= p.box.y + p.box.height) far = p.under ? least - 1e-6 : 0;
      else if (p.under) return;
      if (far < least || (far === least && p.t.mode !== "lines")) { best = p; least = far; }
    };
    for (const part of this.kept) {
      if (!part.xs) { look(part); continue; }
      const { t, xs, ys } = part;
      for (let i = 0; i < xs.length; i++) if (Math.abs(xs[i] - px) <= NEAR && Math.abs(ys[i] - py) <= NEAR) look({ t, i, x: xs[i], y: ys[i] });
    }
    return best;
  }
  moved(event) {
    if (!this.frame) return;
    const [x, y] = this.where(event);
    if (this.start) { this.band(x, y); return; }
    const found = this.nearest(x, y);
    if (found) this.show(found); else this.leave();
  }
  show(p) {
    this.shown = p;
    const id = trialOf(p.t, p.i), t = p.t.hovertemplate ? p.t : { ...p.t, ...this.figure.said(id) }, point = { x: each(t.x, p.i), y: each(t.y, p.i), z: p.z, meta: t.meta, customdata: t.customdata && t.customdata[p.i], text: p.text ?? each(t.text, p.i), name: t.name };
    this.figure.page.light(id);
    this.over.querySelectorAll(".dot").forEach((dot) => dot.remove());
    if (!p.box) made("circle", { class: "dot", cx: p.x, cy: p.y, r: 6 }, this.over);
    this.tip.replaceChildren();
    write(this.tip, filled(t.hovertemplate || "%{x}: %{y}", point));
    this.tip.hidden = false; this.tip.style.left = "0"; // measured where it has room
    const width = this.tip.offsetWidth, height = this.tip.offsetHeight, scale = this.svg.clientWidth / this.width || 1;
    const x = p.x * scale, room = this.element.clientWidth, right = x + 14 + width <= room, beside = right || x - 14 - width >= 0;
    const left = right ? x + 14 : beside ? x - 14 - width : Math.max(0, Math.min(x + 14, room - width));
    const top = beside ? p.y * scale - height / 2 : p.y * scale - height - 14;
    this.tip.style.left = `${left}px`;
    this.tip.style.top = `${beside || top > -this.element.offsetTop ? top : p.y * scale + 16}px`;
  }
  leave() {
    if (!this.shown) return;
    this.shown = null; this.tip.hidden = true;
    this.over.querySelectorAll(".dot").forEach((dot) => dot.remove());
    this.figure.page.light(null);
  }
  light(id) {
    if (!this.over) return;
    this.over.querySelectorAll(".lit").forEach((path) => path.remove());
    if (!id) return;
    let d = "", marks = "";
    for (const t of this.drawn) {
      if (t.uid === id && (t.mode || "lines").includes("lines")) d += lineOf(t.x.map((v) => this.x.px(v)), t.y.map((v) => this.y.px(v)), t.line && t.line.shape);
      const i = t.ids ? t.ids.indexOf(id) : -1;
      if (i >= 0 && t.type !== "bar" && t.type !== "parcoords") marks += symbol("circle", this.x.px(t.x[i]), this.y.px(t.y[i]), 6);
    }
    if (d) { const lit = made("path", { class: "lit", d }, this.over); lit.setAttribute("clip-path", this.plot.getAttribute("clip-path")); }
    if (marks && !marks.includes("NaN")) made("path", { class: "lit", d: marks }, this.over).style.strokeWidth = 2;
  }

  // -- looking closer ---------------------------------------------------------------------------

  pressed(event) {
    if (event.pointerType !== "mouse" || event.button !== 0 || this.figure.layout.fixed) return;
    this.start = this.where(event);
    this.svg.setPointerCapture(event.pointerId);
  }
  band(x, y) {
    const [a, b] = this.start;
    this.zone ||= made("rect", { class: "zone" }, this.over);
    const box = { x: Math.min(a, x), y: Math.min(b, y), width: Math.abs(x - a), height: Math.abs(y - b) };
    for (const name in box) this.zone.setAttribute(name, box[name]);
  }
  released(event) {
    const from = this.start;
    this.start = null;
    if (this.zone) { this.zone.remove(); this.zone = null; }
    if (!from) return;
    const to = this.where(event);
    if (Math.abs(to[0] - from[0]) < 8 || Math.abs(to[1] - from[1]) < 8) {
      if (this.shown && Math.hypot(to[0] - from[0], to[1] - from[1]) < 4) this.figure.page.open(trialOf(this.shown.t, this.shown.i));
      return;
    }
    this.zoomed = [[this.x.back(Math.min(from[0], to[0])), this.x.back(Math.max(from[0], to[0]))], [this.y.back(Math.max(from[1], to[1])), this.y.back(Math.min(from[1], to[1]))]];
    this.leave(); this.draw(this.width, this.height); this.figure.tools();
  }
  reset() {
    this.zoomed = null;
    this.draw(this.width, this.height); this.figure.tools();
  }
  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") { this.leave(); if (this.zoomed) this.reset(); return; }
    if (event.key === "Enter" && this.shown) { this.figure.page.open(trialOf(this.shown.t, this.shown.i)); return; }
    if (!step || !this.points.length) return;
    event.preventDefault();
    const now = this.shown ? this.points.findIndex((p) => p.t === this.shown.t && p.i === this.shown.i && p.z === this.shown.z && p.y === this.shown.y) : step > 0 ? -1 : 0;
    this.show(this.points[(now + step + this.points.length) % this.points.length]);
  }
}

function trialOf(t, i) {
  const id = (t.ids && t.ids[i]) || t.uid || "";
  return /^trial-\d+$/.test(id) ? id : null;
}

function lineOf(xs, ys, shape) {
  let d = "", open = false;
  for (let i = 0; i < xs.length; i++) {
    if (!Number.isFinite(xs[i]) || !Number.isFinite(ys[i])) { open = false; continue; }
    const x = Math.round(10 * xs[i]) / 10, y = Math.round(10 * ys[i]) / 10;
    d += !open ? `M${x} ${y}` : shape === "hv" ? `H${x}V${y}` : `L${x} ${y}`;
    if (!open && (i + 1 >= xs.length || !Number.isFinite(ys[i + 1]))) d += "h0.01";
    open = true;
  }
  return d;
}
