// Marks between the axes as SVG: the subset of Plotly's traces, shapes and annotations that haltune.report uses.

const DASHES = { dash: "7 4", dot: "2 3", dashdot: "7 3 2 3" };
const PLACED = new WeakMap(); // trace -> its coordinates when it was last drawn

function symbol(name, x, y, r) {
  const kind = name.replace("-open", "");
  if (kind === "square") return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
  if (kind === "diamond") return `M${x} ${y - 1.3 * r}l${1.3 * r} ${1.3 * r}l${-1.3 * r} ${1.3 * r}l${-1.3 * r} ${-1.3 * r}z`;
  if (kind === "triangle-up") return `M${x - 1.1 * r} ${y + r}h${2.2 * r}l${-1.1 * r} ${-2 * r}z`;
  if (kind === "triangle-left") return `M${x + r} ${y - 1.1 * r}v${2.2 * r}l${-2 * r} ${-1.1 * r}z`;
  if (kind === "triangle-right") return `M${x - r} ${y - 1.1 * r}v${2.2 * r}l${2 * r} ${-1.1 * r}z`;
  if (kind === "triangle-down") return `M${x - 1.1 * r} ${y - r}h${2.2 * r}l${-1.1 * r} ${2 * r}z`;
  if (kind === "line-ns") return `M${x} ${y - r}v${2 * r}`;
  const cross = `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x + r} ${y - r}l${-2 * r} ${2 * r}`;
  if (kind === "x-thin") return cross;
  const ring = `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
  return kind === "circle-x" ? ring + `M${x - .7 * r} ${y - .7 * r}l${1.4 * r} ${1.4 * r}M${x + .7 * r} ${y - .7 * r}l${-1.4 * r} ${1.4 * r}` : ring;
}

const each = (value, i) => (Array.isArray(value) ? value[i] : value);
const hollow = (name) => /open|x-thin|line-/.test(name || "");

class Marks extends Sheet {
  contents() {
    let batch = null;
    this.outside = false;
    const scale = [this.x, this.y].map((axis) => [axis.from, axis.to, ...axis.range, axis.log, axis.categories]).join();
    const flush = () => { if (batch) this.path(batch.d, batch.line, batch.opacity); batch = null; };
    const shapes = this.figure.layout.shapes || [];
    for (const shape of shapes) if (shape.layer !== "above") this.shape(shape);
    for (const t of this.drawn) {
      if (t.type === "heatmap") { flush(); this.heat(t); continue; }
      if (t.type === "contour") { flush(); this.contour(t); continue; }
      if (t.type === "bar") { flush(); this.bars(t); continue; }
      const mode = t.mode || "lines", placed = this.placed(t, scale), { d } = placed;
      const leaves = mode === "lines" && !t.fill && t.hoverinfo !== "skip" && this.figure.id !== "curves"; // the figure of curves has marks of its own
      const { xs, ys, ways } = (leaves || mode.includes("markers")) && !this.zoomed ? this.inside(placed.xs, placed.ys) : { ...placed, ways: [] };
      if (t.hoverinfo !== "skip") this.kept.push({ t, xs, ys });
      if (mode.includes("lines")) {
        const line = t.line || {}, key = JSON.stringify([line, t.opacity]);
        if (t.fill && !d) continue;
        if (t.fill) { flush(); const area = made("path", { d: d + "z", stroke: "none" }, this.plot); area.style.fill = ink(t.fillcolor); area.style.fillOpacity = t.opacity ?? 1; continue; }
        if (batch && batch.key === key) batch.d += d;
        else { flush(); batch = { d, line, key, opacity: t.opacity }; }
      }
      if (leaves && ways.length) { flush(); this.markers({ marker: t.line }, xs.map((x, i) => (ways[i] && ways[i] !== ways[i - 1] ? x : NaN)), ys, ways); }
      if (mode.includes("markers")) { flush(); this.errors(t, xs, ys); this.markers(t, xs, ys, ways); }
      if (mode.includes("text")) { flush(); this.texts(t, xs, ys); }
    }
    flush();
    for (const shape of shapes) if (shape.layer === "above") this.shape(shape);
    for (const note of this.figure.layout.annotations || []) this.note(note);
  }
  placed(t, scale) { // cached, because most of a thousand curves do not change
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
  inside(xs, ys) { // a mark outside the axes moves to their edge, and becomes a triangle that points outwards
    const { left, right, top, bottom } = this.frame, found = { xs: xs.slice(), ys: ys.slice(), ways: [] };
    xs.forEach((x, i) => {
      const y = ys[i];
      if (!Number.isFinite(x) || !Number.isFinite(y)) return;
      const way = y > bottom + 8 ? "down" : y < top - 8 ? "up" : x < left - 8 ? "left" : x > right + 8 ? "right" : "";
      if (!way) return;
      found.ways[i] = way; this.outside = true;
      found.xs[i] = Math.max(left, Math.min(right, x)); found.ys[i] = Math.max(top, Math.min(bottom, y));
    });
    return found;
  }
  markers(t, xs, ys, ways) {
    const marker = t.marker || {}, lists = ways.length > 0 || [marker.color, marker.size, marker.symbol].some(Array.isArray), groups = new Map();
    xs.forEach((x, i) => {
      if (!Number.isFinite(x) || !Number.isFinite(ys[i])) return;
      const name = ways[i] ? `triangle-${ways[i]}` : each(marker.symbol, i) || "circle", size = each(marker.size, i) || 6;
      let colour = each(marker.color, i) ?? "#5f6b78";
      if (typeof colour === "number") colour = this.coloured(marker, colour);
      const key = lists ? `${name} ${colour}` : "";
      if (!groups.has(key)) groups.set(key, { name, colour, d: "" });
      groups.get(key).d += symbol(name, x, ys[i], ways[i] ? 4 : size / 2);
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
      const way = side > 0 && x + 7 + 7 * text.length > this.frame.right + 8 ? -1 : side; // keep the text within the frame
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
  contour(t) { // one level: in each square of the mesh, the line between the crossed edges
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
    text.style.fontSize = `${font.size || 13}px`; text.style.fill = ink(font.color || "#5f6b78");
  }
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
