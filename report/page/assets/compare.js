// Trials side by side, chosen by the check boxes of their rows or by the page's address: #compare=2,6.

const MARKED = [["#d55e00"], ["#3b6ea5"], ["#1c2530"], ["#d55e00", "dash"], ["#3b6ea5", "dash"], ["#1c2530", "dash"]]; // more styles would look alike

class Comparison {
  constructor(page, table) {
    this.page = page; this.table = table; this.places = MARKED.map(() => null); // the trial with each style
    this.section = made("section", { class: "comparison", "aria-label": "Trials side by side", hidden: "" });
    table.section.before(this.section);
    this.hint = made("button", { type: "button", class: "chosen", hidden: "" }, table.section); // visible while rows are chosen
    this.hint.addEventListener("click", () => this.section.scrollIntoView({ block: "start", behavior: "smooth" }));
    const head = made("div", { class: "tools" }, this.section);
    made("h2", {}, head, "Side by side");
    made("button", { type: "button" }, head, "Clear").addEventListener("click", () => this.choose([]));
    this.figure = new Figure(page, "compared");
    this.section.append(this.figure.card);
    this.scroll = made("div", { class: "wide-table" }, this.section);
    page.figures.set("compared", this.figure);
  }
  get chosen() { return this.places.filter((id) => id !== null); }
  choose(ids) {
    this.places = MARKED.map((_, i) => ids[i] ?? null);
    this.changed();
  }
  toggle(id, on) { // returns whether it is chosen afterwards
    const at = this.places.indexOf(on ? null : id);
    if (at >= 0) this.places[at] = on ? id : null;
    this.changed();
    if (at < 0 && on) this.hint.textContent = `At most ${MARKED.length} side by side`;
    return this.places.includes(id);
  }
  changed() {
    for (const [id, { row }] of this.table.rows) row.cells[0].firstElementChild.checked = this.places.includes(id);
    addressed(this.chosen.length > 1 ? `#compare=${this.chosen.map((id) => id.slice(6)).join()}` : "");
    this.show();
  }
  heard(keys) { // keys of the changed items
    if (!this.chosen.length) return;
    const gone = this.chosen.filter((id) => !this.table.rows.has(id));
    if (gone.length) { this.choose(this.chosen.filter((id) => !gone.includes(id))); return; }
    if (keys.some((key) => key === "figure/curves" || key === "figure/metrics" || this.places.includes(key.slice(key.indexOf("trial-"))))) this.show();
  }
  show() {
    const chosen = this.chosen, shown = chosen.length > 1;
    this.hint.hidden = !chosen.length;
    this.hint.textContent = shown ? `See ${chosen.length} trials side by side` : "Choose another to compare";
    this.section.hidden = !shown;
    if (!shown) return;
    this.curves(chosen);
    this.facts(chosen);
  }
  curves(chosen) {
    const about = this.page.held.get("figure/curves"), others = this.page.held.get("figure/metrics");
    const looking = (t) => {
      const [color, dash] = MARKED[this.places.indexOf(t.uid)], name = `trial ${t.uid.slice(6)}`;
      return { ...t, mode: "lines+markers", name, legendgroup: name, showlegend: true, opacity: 1, line: { color, dash, width: 2 }, marker: { color, size: 4 } };
    };
    const main = chosen.map((id) => this.page.held.get(`curve/${id}`)).filter(Boolean);
    const beside = others ? others.data.filter((t) => chosen.includes(t.uid)) : [], axes = {};
    for (const name in others ? others.layout : {}) if (/^[xy]axis\d/.test(name)) axes[name] = { ...others.layout[name], range: undefined };
    const layout = { ...about.layout, ...axes, annotations: [], height: 260, yaxis: { ...about.layout.yaxis, range: undefined } };
    layout.meta = { title: "", wide: true, logs: about.layout.meta.logs, alt: `The curves of ${chosen.map((id) => id.replace("-", " ")).join(", ")}` };
    this.figure.set({ data: [...main, ...beside].map(looking), layout });
    this.page.sees.observe(this.figure.card);
    this.page.later(false);
  }
  facts(chosen) { // a column for each trial; differences are marked
    const table = made("table"), head = made("tr", {}, made("thead", {}, table)), body = made("tbody", {}, table);
    made("th", {}, head);
    for (const id of chosen) {
      const cell = made("th", { scope: "col" }, head), key = made("svg", { class: "key", viewBox: "0 0 22 12", "aria-hidden": "true" }, cell);
      const [colour, dash] = MARKED[this.places.indexOf(id)];
      made("path", { d: "M1 6H21", "stroke-width": 3, "stroke-dasharray": DASHES[dash], fill: "none" }, key).style.stroke = ink(colour);
      made("button", { type: "button" }, cell, `trial ${id.slice(6)}`).addEventListener("click", () => this.page.open(id));
    }
    const told = chosen.map((id) => factsOf(this.table.rows.get(id)).slice(1)), columns = told.map((facts) => new Map(facts.map(([key, , value]) => [key, value])));
    for (const [key, name] of new Map(told.flatMap((facts) => facts.map(([key, name]) => [key, name])))) {
      const values = columns.map((facts) => facts.get(key) ?? "\u2013");
      const row = made("tr", { class: key !== "reason" && values.some((value) => value !== values[0]) ? "differs" : "" }, body);
      made("th", { scope: "row" }, row, name);
      for (const value of values) made("td", {}, row, typeof value === "number" ? short(value, 6) : value);
    }
    this.scroll.replaceChildren(table);
  }
}

// The facts of a trial as [key, name, number or text]: its columns, values without a column, and why it ended.
function factsOf({ row, why }) {
  const heads = [...document.querySelectorAll("#heads th")], because = why && why.querySelector(".because");
  const cells = [...row.cells].map((cell, i) => {
    const value = cell.dataset.v, number = value !== undefined && value !== "" && Number.isFinite(+value);
    return [`column ${i}`, cell.dataset.of || (heads[i] ? heads[i].textContent.trim() : ""), number ? +value : cell.textContent.trim()];
  });
  const more = JSON.parse(row.dataset.more || "[]"), whole = more.some(([kind]) => kind === "parameter"); // these replace the single column of all parameters
  return [...cells.filter((_, i) => !whole || !row.cells[i].hasAttribute("data-whole")), ...more.map(([kind, name, value]) => [`${kind} ${name}`, name, value]),
    ["reason", "reason", because ? [...because.childNodes].map((node) => node.textContent).filter(Boolean).join("\n") : ""]];
}

// Set the page's address without a step in the browser's history. A page in a notebook's cell has no address.
function addressed(hash) {
  try { history.replaceState(null, "", location.href.split("#")[0] + hash); } catch { /* a frame without an address */ }
}
