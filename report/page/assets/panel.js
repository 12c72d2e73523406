// One pair of axes with its marks.

class Panel extends Hand {
  constructor(figure, element, xkey, ykey) {
    super(figure, element);
    this.keys = [xkey, ykey];
  }
  axes() {
    const layout = this.figure.layout, own = (k) => layout[k === "x" || k === "y" ? `${k}axis` : `${k[0]}axis${k.slice(1)}`];
    const name = (k) => { // without hidden studies, the axis shows the values of the others
      const reaches = this.figure.page.away.size ? this.drawn.flatMap((t) => (t.reach && t.reach[k]) || []) : [];
      return reaches.length ? { ...own(k), range: [Math.min(...reaches), Math.max(...reaches)] } : own(k);
    };
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
    const empty = !this.drawn.length; // without marks, tick labels mean nothing
    const ys = empty ? [] : this.y.ticks(Math.max(2, height / (this.y.categories ? 18 : 48)));
    const label = Math.min(150, ys.reduce((w, [, text]) => Math.max(w, 7.5 * text.length), 8));
    const named = (axis) => axis.layout.title && axis.layout.title.text;
    const many = this.figure.panels.length > 1;
    const left = label + 12, top = many || named(this.y) ? 26 : 12, bottom = height - (named(this.x) ? 44 : 26), right = width - 12;
    this.x.place(left, right); this.y.place(bottom, top);
    this.frame = { left, top, right, bottom };
    const clip = `clip-${this.figure.id}-${this.keys.join("")}`;
    const defs = document.createElementNS(NS, "clipPath");
    defs.id = clip; made("rect", { x: left - 8, y: top - 8, width: right - left + 16, height: bottom - top + 16 }, defs); this.svg.append(defs);
    const grid = made("g", {}, this.svg);
    for (const [u, text] of ys) {
      const y = this.y.at(u);
      made("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }, grid);
      titled({ x: left - 8, y: y + 4, "text-anchor": "end" }, grid, text, label + 4, 7.5);
    }
    const room = Math.max(2, (right - left) / 70);
    for (const [u, text] of empty ? [] : this.x.ticks(room)) {
      const x = this.x.at(u), size = Math.max(3, Math.floor((right - left) / 7 / Math.max(1, this.x.categories ? Math.min(this.x.categories.length, room) : 1)));
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
}
