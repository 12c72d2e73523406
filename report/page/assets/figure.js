// A figure: its title, its legend, its buttons and its panels; or parallel coordinates.

const FULL = 320, HALF = 222, SMALL = 210; // pixels high

class Figure {
  constructor(page, id) {
    this.page = page; this.id = id; this.hidden = new Set(); this.logs = {}; this.view = 0; this.curves = new Map(); this.meta = {};
    this.card = made("figure", { class: "card", "data-figure": id, id: `figure-${id}` });
    this.head = made("a", { href: `#figure-${id}`, title: "a link to this figure" }, made("h2", {}, this.card));
    this.noted = made("p", { class: "note" }, this.card);
    this.head.addEventListener("click", (event) => this.linked(event));
    this.bar = made("div", { class: "tools" }, this.card); this.body = made("div", { class: "panels" }, this.card);
    this.saving = made("button", { type: "button", class: "save", title: "save as it is shown" }, this.card, "SVG");
    this.saving.addEventListener("click", () => this.save());
    this.panels = [];
  }
  linked(event) { // scroll by script: in a notebook's frame the link would open the notebook
    event.preventDefault();
    addressed(`#${this.card.id}`);
    this.card.scrollIntoView({ behavior: "smooth" });
  }
  set(spec) {
    this.spec = spec; this.meta = spec.layout.meta || {};
    this.view = Math.max(0, this.choices().findIndex((button) => button.label === this.chosen));
    this.head.textContent = plainly(this.meta.title || ""); this.noted.textContent = this.meta.note || "";
    this.card.classList.toggle("wide", Boolean(this.meta.wide));
    this.saving.setAttribute("aria-label", `Save ${this.head.textContent || "the curves"} as SVG`);
    for (const panel of this.panels) panel.svg.setAttribute("aria-label", this.alt); // panels are drawn when they become visible
    this.dirty = true;
  }
  curve(id, trace) {
    if (trace === null) this.curves.delete(id); else this.curves.set(id, { ...trace, number: +id.slice(6) || 0 });
    this.dirty = true;
  }
  said(id) { // the hover text of a mark also describes its curve
    const curve = this.curves.get(id);
    return curve ? { meta: curve.meta, hovertemplate: curve.hovertemplate } : {};
  }
  get layout() {
    const menu = this.menu();
    if (!menu || !menu.args[1]) return this.spec.layout;
    const layout = { ...this.spec.layout };
    for (const path in menu.args[1]) { // "xaxis.title.text"
      const names = path.split("."), last = names.pop();
      let into = layout;
      for (const name of names) into = into[name] = { ...into[name] };
      into[last] = menu.args[1][path];
    }
    return layout;
  }
  get alt() { // of the chosen view
    const meta = this.layout.meta || {};
    return meta.alt || meta.title || "";
  }
  choices() {
    const menus = this.spec.layout.updatemenus;
    return menus && menus.length ? menus[0].buttons : [];
  }
  menu() {
    return this.choices()[this.view];
  }
  choose(i) { // by name, because an update may change the order of the choices
    this.view = i; this.chosen = this.choices()[i].label;
    this.panels.forEach((p) => { p.zoomed = null; });
    this.draw();
  }
  traces() { // after the view, the legend and the filter
    return (this.applied ||= this.apply());
  }
  apply() {
    const change = (this.menu() || { args: [{}] }).args[0], narrowed = this.page.chosen || this.page.away.size;
    const kept = (id) => !id || !/^(trial|study)-/.test(id) || this.page.kept(id);
    const all = [...[...this.curves.values()].sort((a, b) => a.zorder - b.zorder || a.number - b.number), ...this.spec.data.map((t, i) => {
      const found = { ...t };
      for (const name in change) if (change[name][i] !== undefined) found[name] = change[name][i];
      return found;
    })].filter((t) => t.visible !== false && kept(t.uid) && !this.hidden.has(t.legendgroup || t.name)).sort((a, b) => (b.zorder < 0) - (a.zorder < 0)); // below all curves
    return !narrowed ? all : all.map((t) => {
      if (!t.ids || !t.ids.some((id) => /^trial-/.test(id)) || t.type === "parcoords") return t;
      const left = t.ids.map((id, i) => i).filter((i) => kept(t.ids[i])), found = { ...t };
      const sieve = (column) => (Array.isArray(column) && column.length === t.ids.length ? left.map((i) => column[i]) : column);
      for (const name of ["x", "y", "ids", "customdata", "text"]) found[name] = sieve(t[name]);
      found.marker = { ...t.marker, cmin: t.marker && t.marker.cmin, cmax: t.marker && t.marker.cmax };
      for (const name in found.marker) if (name !== "colorscale") found.marker[name] = sieve(found.marker[name]);
      for (const name of ["error_x", "error_y"]) if (t[name]) found[name] = { ...t[name], array: sieve(t[name].array) };
      return found;
    });
  }
  draw() {
    if (!this.spec) return;
    this.saving.hidden = !saves() || !(this.spec.data.length + this.curves.size);
    this.dirty = false; this.drawn = true; this.applied = null;
    const along = this.spec.data.find((t) => t.type === "parcoords");
    if (along) {
      while (this.panels.length) this.panels.pop().element.remove(); // the figure was empty
      this.parallel ||= new Parallel(this, this.body);
      this.parallel.draw(along, this.card.clientWidth);
      this.tools();
      return;
    }
    const all = [...this.spec.data, ...this.curves.values()], keys = [...new Set(all.map((t) => `${t.xaxis || "x"} ${t.yaxis || "y"}`))];
    if (!keys.length) keys.push("x y");
    while (this.panels.length > keys.length) this.panels.pop().element.remove();
    keys.forEach((key, i) => {
      if (!this.panels[i]) this.panels.push(new Panel(this, made("div", { class: "panel" }, this.body), ...key.split(" ")));
      this.panels[i].keys = key.split(" ");
    });
    this.body.classList.toggle("many", keys.length > 1); this.body.classList.toggle("four", keys.length === 4);
    const height = this.layout.height || (keys.length > 1 ? SMALL : this.meta.wide ? FULL : HALF);
    const widths = this.panels.map((panel) => Math.max(200, panel.element.clientWidth));
    const own = this.meta.heights || {};
    this.panels.forEach((panel, i) => panel.draw(widths[i], own[panel.keys[0]] || Math.min(height, this.meta.tall ? 4000 : Math.max(220, widths[i] * 0.8))));
    this.tools();
  }
  tools() {
    const held = [...this.bar.querySelectorAll("button, select")].indexOf(document.activeElement); // keep the keyboard focus
    this.listed();
    const again = this.bar.querySelectorAll("button, select")[held];
    if (again) again.focus();
  }
  listed() {
    this.bar.replaceChildren();
    const groups = new Map();
    for (const t of [...this.spec.data, ...[...this.curves.values()].sort((a, b) => a.zorder - b.zorder)]) {
      const name = t.legendgroup || t.name;
      if (!name || t.showlegend === false || groups.has(name)) continue;
      groups.set(name, t);
    }
    if (groups.size > 1 && this.layout.showlegend !== false) for (const [name, t] of groups) this.entry(name, t);
    if (this.id !== "curves" && this.panels.some((p) => p.outside)) made("span", { class: "edge" }, this.bar, "triangle: outside the axis");
    made("span", { class: "gap" }, this.bar);
    const menus = this.spec.layout.updatemenus;
    if (menus && menus.length && menus[0].type === "dropdown") {
      const list = made("select", { "aria-label": menus[0].name }, this.bar);
      this.choices().forEach((button, i) => { made("option", { value: i }, list, plainly(button.label)).selected = i === this.view; });
      list.addEventListener("change", () => this.choose(+list.value));
    } else this.choices().forEach((button, i) => this.button(plainly(button.label), i === this.view, () => this.choose(i)));
    if (this.meta.logs) this.button("log", Boolean(this.logs.y), () => { this.logs.y = !this.logs.y; if (!this.logs.y) delete this.logs.y; this.panels.forEach((p) => { p.zoomed = null; }); this.draw(); });
    if (this.panels.some((p) => p.zoomed)) this.button("whole", false, () => this.panels.forEach((p) => p.reset()));
  }
  save() { // as shown: title, legend and panels
    const box = (element) => element.getBoundingClientRect(), { left, top } = box(this.body), sheets = [...this.body.querySelectorAll(".panel > svg[role=img]")];
    const width = Math.ceil(box(this.body).width), high = Math.ceil(box(this.body).height), root = getComputedStyle(document.body);
    const out = made("svg", { xmlns: NS, "font-family": root.fontFamily.replace(/"/g, "'"), "font-size": 13 }), ground = made("rect", { width, fill: hex(root.backgroundColor) }, out);
    made("text", { x: 12, y: 24, "font-size": 17, "font-weight": 650, fill: hex(root.color) }, out, this.head.textContent);
    let x = 12, y = 46;
    for (const entry of this.bar.querySelectorAll(".key-entry[aria-pressed=true]")) {
      const [key, label] = entry.children, wide = box(label).width + 44;
      if (x + wide > width) { x = 12; y += 20; }
      this.plain(key, out, { x, y: y - 10, width: 22, height: 12 });
      made("text", { x: x + 27, y, fill: hex(getComputedStyle(entry).color) }, out, label.textContent);
      x += wide;
    }
    const below = y + (x > 12 ? 14 : -14);
    for (const svg of sheets) { const place = box(svg); this.plain(svg, out, { x: place.left - left, y: place.top - top + below, width: place.width, height: place.height }); }
    ground.setAttribute("height", high + below);
    for (const [name, value] of [["viewBox", `0 0 ${width} ${high + below}`], ["width", width], ["height", high + below]]) out.setAttribute(name, value);
    download(`${this.head.textContent || "Side by side"}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(out));
  }
  plain(svg, parent, place) { // a copy with inline styles
    const copy = svg.cloneNode(true), from = [svg, ...svg.querySelectorAll("*")];
    [copy, ...copy.querySelectorAll("*")].forEach((element, i) => {
      const style = getComputedStyle(from[i]);
      for (const name of ["class", "style", "tabindex", "role", "data-axis", "aria-label", "aria-hidden"]) element.removeAttribute(name);
      if (/^(svg|g|title|clipPath)$/.test(element.tagName)) return;
      for (const name of ["fill", "stroke"]) element.setAttribute(name, style[name] === "none" ? "none" : hex(style[name]));
      if (style.fillOpacity !== "1" || style.fill === "rgba(0, 0, 0, 0)") element.setAttribute("fill-opacity", style.fill === "rgba(0, 0, 0, 0)" ? 0 : style.fillOpacity);
      for (const name of ["opacity", "stroke-width", ...(element.tagName === "text" ? ["font-size", "font-weight", "paint-order"] : [])]) element.setAttribute(name, style.getPropertyValue(name));
    });
    for (const name in place) copy.setAttribute(name, place[name]);
    parent.append(copy);
  }
  entry(name, t) {
    const study = /^study-/.test(t.uid), shown = study ? this.page.kept(t.uid) : !this.hidden.has(name); // a study is hidden on the whole page
    const button = made("button", { type: "button", class: "key-entry", "aria-pressed": String(shown), title: "show or hide" }, this.bar);
    const key = made("svg", { viewBox: "0 0 22 12", "aria-hidden": "true" }, button), mark = t.marker || {};
    const style = [...this.curves.values()].find((c) => c.legendgroup === name && c.mode === "lines") || t, line = style.line || {};
    if ((style.mode || "").includes("lines") && !t.fill) made("path", { d: "M1 6H21", "stroke-width": line.width || 2, "stroke-dasharray": DASHES[line.dash], fill: "none" }, key).style.stroke = ink(line.color);
    const colour = [].concat(mark.color || t.fillcolor || line.color || "#5f6b78")[0], kind = [].concat(mark.symbol || (t.type === "bar" || t.fill ? "square" : "circle"))[0];
    if (mark.color !== undefined || t.type === "bar" || t.fill) {
      const path = made("path", { d: symbol(kind, 11, 6, 4), "stroke-width": 1.5 }, key), drawn = typeof colour === "number" ? "#5f6b78" : colour;
      path.style.fill = hollow(kind) ? "none" : ink(drawn); path.style.stroke = hollow(kind) ? ink(drawn) : "none";
    }
    made("span", {}, button, plainly(t.name || name));
    button.addEventListener("click", () => {
      if (study) { this.page.toggle(t.uid); return; }
      if (!this.hidden.delete(name)) this.hidden.add(name);
      this.draw();
    });
  }
  button(text, pressed, act) {
    const button = made("button", { type: "button", "aria-pressed": String(pressed) }, this.bar, text);
    button.addEventListener("click", act);
  }
  light(id) {
    this.panels.forEach((panel) => panel.light(id));
    if (this.parallel) this.parallel.light(id);
  }
}

// Parallel coordinates: drag along an axis to select a range, click it to clear the range. It filters the whole page.
class Parallel extends Sheet {
  constructor(figure, body) {
    super(figure, made("div", { class: "panel" }, body));
    this.extents = new Map(); // name of the axis -> range; a Map, because names are user text
    this.svg.addEventListener("pointerdown", (event) => this.pressed(event));
    this.svg.addEventListener("touchstart", (event) => { if (event.target.hasAttribute("data-axis")) event.preventDefault(); }, { passive: false }); // a touch on an axis drags and does not scroll
    this.svg.addEventListener("pointermove", (event) => this.moved(event));
    this.svg.addEventListener("pointerup", (event) => this.released(event));
    this.svg.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") this.leave(); });
    this.svg.addEventListener("pointercancel", () => this.dropped());
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }
  draw(t, room) { // on a narrow screen it scrolls: each axis needs room for its title
    const n = t.dimensions.length, width = Math.max(room, 64 * n), scrolls = width > room;
    this.element.style.width = scrolls ? `${width}px` : ""; this.element.parentElement.style.overflowX = scrolls ? "auto" : "";
    this.svg.style.touchAction = scrolls ? "pan-x pan-y" : "";
    const height = this.figure.meta.wide ? FULL : HALF + 10, top = 44, bottom = height - 14, left = 30, right = width - 56;
    const held = this.svg.contains(document.activeElement) ? document.activeElement.getAttribute("data-axis") : null;
    Object.assign(this, { t, top, bottom });
    this.clear(width, height);
    this.xs = t.dimensions.map((_, i) => (n > 1 ? left + (right - left) * i / (n - 1) : (left + right) / 2));
    this.axes = t.dimensions.map((d) => { const axis = new Axis({ range: d.range, tickvals: d.tickvals, ticktext: d.ticktext }, () => d.values); axis.place(bottom, top); return axis; });
    const order = t.ids.map((_, i) => i).filter((i) => this.shown(t.ids[i])).sort((a, b) => t.line.color[a] - t.line.color[b]);
    this.lines = t.ids.map((_, i) => t.dimensions.map((d, k) => [this.xs[k], this.axes[k].px(d.values[i])]));
    const back = made("g", {}, this.svg), front = made("g", {}, this.svg);
    const groups = new Map();
    let dull = "";
    for (const i of order) {
      const d = lineOf(this.lines[i].map((p) => p[0]), this.lines[i].map((p) => p[1]));
      if (this.figure.page.chosen && !this.figure.page.chosen.has(t.ids[i])) { dull += d; continue; }
      const low = t.line.cmin, high = t.line.cmax, share = high > low ? Math.round(8 * (t.line.color[i] - low) / (high - low)) / 8 : 1;
      groups.set(share, (groups.get(share) || "") + d);
    }
    if (dull) made("path", { d: dull, fill: "none", "stroke-width": 1, opacity: 0.35 }, back).style.stroke = "var(--rule)";
    for (const [share, d] of groups) {
      const path = made("path", { d, fill: "none", "stroke-width": share >= 0.99 ? 2 : 1.2, opacity: t.ids.length > 300 ? 0.45 : 0.8 }, front);
      path.style.stroke = between(t.line.colorscale, share);
    }
    t.dimensions.forEach((d, k) => this.axis(d, k));
    if (held !== null && held < n) this.svg.querySelectorAll(".axis-hit")[held].focus({ preventScroll: true });
  }
  axis(d, k) {
    const x = this.xs[k], last = k === this.xs.length - 1, g = made("g", {}, this.svg), step = last ? x - (this.xs[k - 1] ?? 0) : this.xs[k + 1] - x;
    made("line", { class: "grid", x1: x, x2: x, y1: this.top, y2: this.bottom }, g).style.stroke = "var(--muted)";
    const label = plainly(d.label), wide = Math.min(step - 6, (step + 18) / 1.5); // the first title starts 24 left of its axis, and the second is centred
    titled({ class: "title", x: k ? (last ? x + 50 : x) : x - 24, y: 16, "text-anchor": k ? (last ? "end" : "middle") : "start" }, g, label, wide, 9, label.replace(/^.*[./](?=.)/s, "\u2026"));
    for (const [u, text] of this.axes[k].ticks(6)) made("text", { class: "halo", x: x + 6, y: this.axes[k].at(u) + 4 }, g, text.length > 10 ? text.slice(0, 9) + "\u2026" : text);
    const extent = this.extents.get(d.label);
    if (extent) {
      const [a, b] = extent.map((u) => this.axes[k].at(u));
      made("rect", { class: "zone", x: x - 6, width: 12, y: Math.min(a, b), height: Math.abs(b - a) }, g);
      made("rect", { x: x - 6, width: 12, y: Math.min(a, b), height: Math.abs(b - a), fill: "none" }, g).style.stroke = "var(--cool)";
    }
    made("rect", { class: "axis-hit", x: x - 14, width: 28, y: this.top - 12, height: this.bottom - this.top + 24, "data-axis": k, tabindex: 0, "aria-label": `${plainly(d.label)}: arrow keys move the ends of what is chosen, Escape lets go` }, g);
  }
  pressed(event) {
    const k = event.target.getAttribute && event.target.getAttribute("data-axis");
    if (k === null || event.button !== 0) return;
    event.preventDefault();
    this.start = { k: +k, y: this.where(event)[1] };
    this.svg.setPointerCapture(event.pointerId);
  }
  moved(event) {
    const [x, y] = this.where(event);
    if (this.start) {
      this.zone ||= made("rect", { class: "zone", x: this.xs[this.start.k] - 6, width: 12 }, this.over);
      this.zone.setAttribute("y", Math.min(y, this.start.y)); this.zone.setAttribute("height", Math.abs(y - this.start.y));
      return;
    }
    const found = this.nearest(x, y);
    if (found < 0) { this.leave(); return; }
    this.figure.page.light(this.t.ids[found]);
    this.tip.replaceChildren();
    write(this.tip, filled(this.t.meta.hover, { customdata: this.t.customdata[found] }));
    this.tip.hidden = false;
    this.tip.style.left = `${Math.max(0, Math.min(x + 14, this.element.clientWidth - this.tip.offsetWidth))}px`; this.tip.style.top = `${y + 16}px`;
  }
  shown(id) { // a line, in grey if the filter leaves it out
    return this.figure.page.all || !this.figure.page.away.has(id);
  }
  nearest(x, y) {
    let k = this.xs.findIndex((at) => at >= x);
    if (k <= 0) k = k < 0 ? this.xs.length - 1 : Math.min(1, this.xs.length - 1);
    const share = k > 0 ? (x - this.xs[k - 1]) / (this.xs[k] - this.xs[k - 1]) : 0;
    let best = -1, least = 8;
    this.lines.forEach((line, i) => {
      if (!this.figure.page.kept(this.t.ids[i])) return;
      const at = k > 0 ? line[k - 1][1] * (1 - share) + line[k][1] * share : line[0][1];
      if (Math.abs(at - y) < least) { least = Math.abs(at - y); best = i; }
    });
    return best;
  }
  released(event) {
    if (!this.start) { if (event.pointerType !== "mouse") this.moved(event); return; } // a tap shows the tip
    const y = this.where(event)[1], { k, y: from } = this.start, name = this.t.dimensions[k].label;
    this.dropped();
    if (Math.abs(y - from) < 4) this.extents.delete(name);
    else this.extents.set(name, [this.axes[k].back(y), this.axes[k].back(from)].sort((a, b) => a - b));
    this.figure.page.brush(this.inside());
  }
  dropped() {
    if (this.zone) this.zone.remove();
    this.start = null; this.zone = null;
  }
  key(event) { // the up key raises the lower end, the down key lowers the upper end
    const k = event.target.getAttribute("data-axis");
    if (k === null) return;
    const name = this.t.dimensions[k].label, [low, high] = this.axes[k].home, [a, b] = this.extents.get(name) || [low, high], step = (high - low) / 20;
    const chosen = { ArrowUp: [Math.min(a + step, b), b], ArrowDown: [a, Math.max(b - step, a)], Escape: null }[event.key];
    if (chosen === undefined) return;
    event.preventDefault();
    if (chosen) this.extents.set(name, chosen); else this.extents.delete(name);
    this.figure.page.brush(this.inside());
  }
  inside() { // the trials within all ranges; null without ranges
    const extents = this.t.dimensions.map((d, k) => [d, k]).filter(([d]) => this.extents.has(d.label));
    if (!extents.length) return null;
    return new Set(this.t.ids.filter((_, i) => extents.every(([d, k]) => {
      const u = this.axes[k].unit(d.values[i]), [a, b] = this.extents.get(d.label);
      return u >= a && u <= b;
    })));
  }
  leave() {
    if (this.tip.hidden) return;
    this.tip.hidden = true;
    this.figure.page.light(null);
  }
  light(id) {
    if (!this.over) return;
    this.over.querySelectorAll(".lit").forEach((path) => path.remove());
    const i = id ? this.t.ids.indexOf(id) : -1;
    if (i >= 0) made("path", { class: "lit", d: lineOf(this.lines[i].map((p) => p[0]), this.lines[i].map((p) => p[1])) }, this.over);
  }
}
