// The page: its contents are items with keys. A live page receives the changed items.

class Page {
  constructor() {
    this.chosen = null; this.figures = new Map(); this.litTrial = null; this.held = new Map();
    this.away = new Set(); this.all = false; // trials with the tag #hidden in their note: shown while the filter names it
    this.box = document.getElementById("figures");
    this.near = new Set(); // figures in or near the view; others are drawn when they come near
    this.sees = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) if (isIntersecting) this.near.add(target); else this.near.delete(target);
      this.later(false);
    }, { rootMargin: "300px" });
    const section = document.querySelector(".trials");
    this.table = section && new Table(this, section);
    this.comparison = section && new Comparison(this, this.table);
    this.theme();
    this.best();
    this.studies();
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; this.later(true); } });
    addEventListener("hashchange", () => this.go());
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
  }
  apply(items, patches) {
    for (const key in patches) items[key] = patched(this.held.get(key), patches[key]);
    for (const key in items) {
      if (/^(figure|curve|order|form)\//.test(key)) this.held.set(key, items[key]);
      const [kind, id] = [key.split("/")[0], key.slice(key.indexOf("/") + 1)], item = items[key];
      if (kind === "figure") this.figure(id, item);
      else if (kind === "curve") this.figureOf("curves").curve(id, item);
      else if (kind === "order") { if (this.table) this.table.order(item); }
      else if (kind === "form") { this.form = item; if (this.live) this.live.allow(); }
      else if (kind === "row") { if (this.table) this.table.set(id, item); }
      else { const place = document.getElementById(kind); if (place) place.innerHTML = item; if (kind === "best") this.best(); if (kind === "heads" && this.table) this.table.heads(); }
    }
    if (this.comparison) this.comparison.heard(Object.keys(items));
    this.later(false);
  }
  best() {
    document.querySelectorAll("#best .copy").forEach(copies);
  }
  studies() { // of a comparison: each can be hidden, by its button in the table or its entry in a legend
    for (const row of document.querySelectorAll("tr[data-study]")) {
      const id = row.dataset.study, button = row.querySelector("button:not(.copy button)");
      if (button) button.addEventListener("click", () => this.toggle(id));
    }
    this.marked();
  }
  toggle(id) {
    this.hide(id, !this.away.has(id));
    this.marked();
    addressed(this.away.size ? `#hide=${[...this.away].map((one) => one.slice(6))}` : "");
  }
  marked() {
    for (const row of document.querySelectorAll("tr[data-study]")) {
      const away = this.away.has(row.dataset.study), button = row.querySelector("button:not(.copy button)");
      row.classList.toggle("away", away);
      if (!button) { row.hidden = away; continue; } // the configuration of its best trial
      button.hidden = false; button.textContent = away ? "Show again" : "Hide";
      button.setAttribute("aria-label", `${button.textContent} ${row.firstElementChild.textContent}`);
    }
  }
  go() { // to the target in the address: a figure, a trial, or trials side by side; or without the studies that it hides
    const [, kind, text] = /^#(figure|trial|compare|hide)[-=]([\w,-]+)$/.exec(location.hash) || [];
    if (!this.table && (kind === "hide" || !location.hash)) {
      const numbers = kind === "hide" ? text.split(",") : [];
      for (const row of document.querySelectorAll("tr[data-study]")) this.hide(row.dataset.study, numbers.includes(row.dataset.study.slice(6)));
      this.marked();
    }
    if (kind === "compare" && this.table) {
      this.comparison.choose([...new Set(text.split(","))].map((number) => `trial-${number}`).filter((id) => this.table.rows.has(id)));
      this.comparison.section.scrollIntoView({ block: "start" });
    } else if (kind === "trial") this.open(`trial-${text}`);
    else if (kind === "figure" && this.figures.has(text)) this.figures.get(text).card.scrollIntoView();
  }
  figureOf(id) {
    if (!this.figures.has(id)) this.figures.set(id, new Figure(this, id));
    return this.figures.get(id);
  }
  figure(id, item) {
    if (item === null) { const old = this.figures.get(id); if (old) { this.sees.unobserve(old.card); this.near.delete(old.card); old.card.remove(); this.figures.delete(id); this.fill(); } return; }
    const figure = this.figureOf(id);
    figure.set(item);
    if (figure.card.isConnected) return;
    const after = [...this.figures.values()].filter((f) => f.card.isConnected && f.meta.order > figure.meta.order).sort((a, b) => a.meta.order - b.meta.order)[0];
    this.box.insertBefore(figure.card, after ? after.card : null);
    this.sees.observe(figure.card);
    this.fill();
  }
  fill() { // a card of half width without a neighbour takes the full width
    let odd = null;
    const whole = new Set(), cards = [...this.box.children];
    for (const card of cards) {
      const half = !card.classList.contains("wide");
      if (!half && odd) whole.add(odd);
      odd = half && !odd ? card : null;
    }
    if (odd) whole.add(odd);
    for (const card of cards) if (card.classList.contains("alone") !== whole.has(card)) {
      card.classList.toggle("alone");
      this.figures.get(card.dataset.figure).dirty = true;
    }
  }
  later(all) { // draw once for many changes
    this.redraw ||= all;
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      for (const figure of this.figures.values()) if (figure.spec && (figure.dirty || this.redraw)) { if (!figure.drawn || this.near.has(figure.card)) figure.draw(); else figure.dirty = true; }
      if (this.table && (this.table.stale || this.redraw)) this.table.arrange();
      this.redraw = false;
    });
  }
  print(now) { // draw for the width of paper, with every row
    document.documentElement.classList.toggle("printing", now);
    for (const figure of this.figures.values()) if (figure.spec) figure.draw();
    if (now && this.table) { this.table.all = true; this.table.arrange(); }
  }
  kept(id) { // whether figures and the table show this trial
    return (!this.chosen || this.chosen.has(id)) && (this.all || !this.away.has(id));
  }
  hide(id, hidden) {
    if (this.away.has(id) === hidden) return;
    if (hidden) this.away.add(id); else this.away.delete(id);
    this.later(true);
  }
  brush(chosen) {
    this.chosen = chosen;
    this.later(true);
  }
  light(id) {
    if (this.litTrial === id) return;
    this.litTrial = id;
    for (const figure of this.figures.values()) figure.light(id);
    if (this.table) this.table.light(id);
  }
  open(id) {
    if (id && this.table) this.table.open(id);
  }
  theme() {
    const button = document.getElementById("theme"), root = document.documentElement;
    const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const keep = (name) => { try { if (name) localStorage.setItem("haltune-theme", name); return localStorage.getItem("haltune-theme"); } catch { return null; } };
    const told = keep();
    if (told === "dark" || told === "light") root.dataset.theme = told;
    const say = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", dark() ? "Light colours" : "Dark colours"); };
    button.hidden = false; say();
    button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; keep(root.dataset.theme); say(); });
  }
}

// Apply a patch in the format of `patch` in watched.py. Unchanged parts stay the same objects.
function patched(old, patch) {
  if (Array.isArray(patch)) return patch.length < 3 ? patch[0] : [...old.slice(0, patch[0]), ...patch[2], ...old.slice(patch[0] + patch[1])];
  const found = Array.isArray(old) ? [...old] : { ...old };
  for (const key in patch) if (patch[key].length === 0) delete found[key]; else found[key] = patched(found[key], patch[key]);
  return found;
}

const told = JSON.parse(document.getElementById("items").textContent);
const haltune = { colours: told.colours };
haltune.page = new Page();
haltune.page.apply(told.items);
requestAnimationFrame(() => requestAnimationFrame(() => haltune.page.go())); // after the figures have their heights
