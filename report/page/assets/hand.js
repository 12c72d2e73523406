// Input on a panel: pointing shows a tip, dragging zooms, and arrow keys move along the points.

const NEAR = 24; // pixels

class Hand extends Marks {
  constructor(figure, element) {
    super(figure, element);
    this.svg.tabIndex = 0;
    this.svg.addEventListener("pointermove", (event) => this.moved(event));
    this.svg.addEventListener("pointerdown", (event) => this.pressed(event));
    this.svg.addEventListener("pointerup", (event) => this.released(event));
    this.svg.addEventListener("pointerleave", (event) => { if (!this.start && event.pointerType !== "touch") this.leave(); }); // a lifted finger also fires this event
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("dblclick", () => this.reset());
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }
  get points() { // made at the first arrow key
    if (this.pointed) return this.pointed;
    const found = this.pointed = [];
    for (const part of this.kept) {
      if (!part.xs) { found.push(part); continue; }
      const { t, xs, ys } = part;
      for (let i = 0; i < xs.length; i++) if (Number.isFinite(xs[i]) && Number.isFinite(ys[i])) found.push({ t, i, x: xs[i], y: ys[i] });
    }
    return found;
  }

  // -- pointing ---------------------------------------------------------------------------------

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
    this.tip.hidden = false; this.tip.style.left = "0"; // measured at the left, where nothing wraps it
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

  // -- zooming ----------------------------------------------------------------------------------

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
  tapped(event) { // the first tap shows the tip, a second tap opens the trial
    const before = this.shown;
    this.moved(event);
    if (before && this.shown && before.t === this.shown.t && before.i === this.shown.i) this.figure.page.open(trialOf(before.t, before.i));
  }
  released(event) {
    if (event.pointerType !== "mouse") { this.tapped(event); return; }
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
