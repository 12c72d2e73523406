// The table of trials: click a heading to sort, filter by words and outcomes, click a row to open it.

const HIDDEN = /(^|\s)#hidden(?=\s|$)/i; // in a note: the page leaves the trial out
const MOST = 50; // rows shown before a click on "Show more"

class Table {
  constructor(page, section) {
    this.page = page; this.section = section; this.body = section.querySelector("tbody");
    this.words = section.querySelector("input"); this.outcome = section.querySelector("select");
    this.count = section.querySelector("output"); this.hint = section.querySelector(".hint"); this.by = null; this.all = false;
    this.words.addEventListener("input", () => {
      const all = /#hidden/i.test(this.words.value);
      if (all !== page.all) { page.all = all; page.later(true); } else this.arrange();
    });
    this.outcome.addEventListener("change", () => this.arrange());
    this.more = section.querySelector(".more");
    this.more.addEventListener("click", () => { this.all = true; this.arrange(); });
    section.querySelector("thead").addEventListener("click", (event) => { const head = event.target.closest("th"); if (head) this.sort(head.cellIndex); });
    this.body.addEventListener("click", (event) => { const row = event.target.closest("tr"); if (row && !event.target.closest("input") && !getSelection().toString()) this.clicked(row.dataset.trial); });
    this.body.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target.tagName === "TR") this.clicked(event.target.dataset.trial); });
    this.body.addEventListener("pointerover", (event) => { const row = event.target.closest("tr"); this.page.light(row && row.dataset.trial); });
    this.body.addEventListener("pointerleave", () => this.page.light(null));
    for (const [name, act] of [["reasons", (button) => this.reasons(button)], ["save", () => this.save()]]) {
      const button = section.querySelector(`[data-table=${name}]`);
      button.hidden = name === "save" && !saves();
      button.addEventListener("click", () => act(button));
    }
    this.rows = new Map(); this.ranks = new Map();
    for (const row of this.body.querySelectorAll("tr:not(.why)")) this.know(row);
    [...this.rows.keys()].forEach((id, i) => this.ranks.set(id, i));
    this.arrange();
  }
  order(ids) {
    this.ranks = new Map(ids.map((id, i) => [`trial-${id}`, i]));
    this.stale = true;
  }
  heads() { // the columns changed
    this.by = null; this.stale = true;
  }
  know(row, why = row.nextElementSibling) {
    if (!why || !why.classList.contains("why")) why = null;
    row.tabIndex = 0;
    const id = row.dataset.trial, box = made("input", { type: "checkbox", "aria-label": `Compare trial ${id.slice(6)}` });
    box.checked = Boolean(this.page.comparison) && this.page.comparison.chosen.includes(id);
    box.addEventListener("change", () => { box.checked = this.page.comparison.toggle(id, box.checked); });
    row.cells[0].prepend(box);
    if (why) row.setAttribute("aria-expanded", String(why.classList.contains("open")));
    this.page.hide(id, Boolean(why) && HIDDEN.test(why.querySelector(".because").dataset.note));
    this.rows.set(row.dataset.trial, { row, why, facts: null, text: (row.textContent + " " + (why ? why.textContent : "")).toLowerCase() });
  }
  set(id, text) { // update a row in place, to keep the pointer and the focus on it
    const old = this.rows.get(id);
    this.stale = true;
    if (text === null) {
      this.page.hide(id, false);
      if (old) { old.row.remove(); if (old.why) old.why.remove(); }
      this.rows.delete(id);
      return;
    }
    const holder = document.createElement("template");
    holder.innerHTML = `<table><tbody>${text}</tbody></table>`;
    const [row, why] = holder.content.querySelectorAll("tr");
    if (!old) { this.know(row, why); return; }
    old.row.classList.toggle("best", row.classList.contains("best"));
    Object.assign(old.row.dataset, row.dataset);
    old.row.replaceChildren(...row.childNodes);
    old.why.cells[0].colSpan = why.cells[0].colSpan;
    for (const part of [".because", "pre", ".files"]) old.why.querySelector(part).replaceWith(why.querySelector(part));
    this.know(old.row, old.why);
    if (old.why.classList.contains("open")) this.toggle(id, true);
  }
  sort(i) {
    const heads = [...this.section.querySelectorAll("th")], head = heads[i];
    const down = head.getAttribute("aria-sort") === "ascending" || (!head.hasAttribute("aria-sort") && head.dataset.first === "down");
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    this.by = { i, down };
    this.arrange();
  }
  key(row) {
    if (!this.by) return this.ranks.get(row.dataset.trial) ?? this.ranks.size;
    const cell = row.cells[this.by.i], value = cell.dataset.v ?? cell.textContent;
    return value === "" || Number.isNaN(+value) ? value : +value;
  }
  arrange() {
    this.stale = false;
    const words = this.words.value.toLowerCase().split(/\s+/).filter(Boolean).map(condition), kind = this.outcome.value;
    const found = [...this.rows.values()], down = this.by && this.by.down ? -1 : 1;
    const keys = new Map(found.map((r) => [r, this.key(r.row)]));
    found.sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      if ((x === "") !== (y === "")) return x === "" ? 1 : -1; // rows without a value come last in both orders
      if (typeof x === "number" && typeof y === "number") return down * (x - y);
      if (typeof x !== typeof y) return down * (typeof x === "number" ? -1 : 1);
      return down * String(x).localeCompare(String(y));
    });
    let shown = 0, left = 0;
    this.passing = [];
    const order = []; // hidden rows are not in the document, because a thousand rows are slow to lay out
    for (const told of found) {
      const { row, why } = told;
      const match = this.page.kept(row.dataset.trial) && (!kind || row.dataset.kind === kind) && words.every((word) => passes(word, told));
      if (!match) continue;
      this.passing.push(row);
      if (!this.all && shown >= MOST) { left++; continue; }
      shown++;
      order.push(row);
      if (why) order.push(why);
    }
    this.hint.textContent = words.map((word) => wrong(word, found)).find(Boolean) || "";
    const now = this.body.children, focused = document.activeElement;
    if (order.length !== now.length || order.some((row, i) => row !== now[i])) {
      this.body.replaceChildren(...order);
      if (focused && this.body.contains(focused)) focused.focus({ preventScroll: true });
    }
    this.more.hidden = !left;
    this.more.textContent = `Show ${left.toLocaleString("en-US")} more`;
    const all = found.length;
    const hidden = this.page.all ? 0 : this.page.away.size;
    this.count.textContent = shown + left === all ? "" : `${(shown + left).toLocaleString("en-US")} of ${all.toLocaleString("en-US")}${hidden ? `; ${hidden.toLocaleString("en-US")} hidden, see #hidden` : ""}`;
  }
  reasons(button) { // without reasons, a row is one line
    const shown = !this.section.classList.toggle("brief");
    button.setAttribute("aria-pressed", String(shown));
  }
  save() { // the filtered rows in their order
    const told = this.passing.map((row) => factsOf(this.rows.get(row.dataset.trial))), heads = new Map(told.flatMap((facts) => facts.map(([key, name]) => [key, name])));
    const lines = told.map((facts) => { const known = new Map(facts.map(([key, , value]) => [key, value])); return [...heads.keys()].map((key) => celled(known.get(key))).join(); });
    const text = [[...heads.values()].map(celled).join(), ...lines].join("\r\n") + "\r\n";
    download("trials.csv", "text/csv", "\ufeff", text);
  }
  clicked(id) {
    const found = this.toggle(id), open = found && found.why && found.why.classList.contains("open");
    if (this.page.comparison.chosen.length < 2) addressed(open ? `#${id}` : "");
  }
  toggle(id, open) {
    const found = this.rows.get(id);
    if (found && found.why) {
      const opened = found.why.classList.toggle("open", open);
      found.row.setAttribute("aria-expanded", String(opened));
      const place = found.why.querySelector(".copy");
      if (opened && !place.children.length) copies(place);
      if (opened && this.page.live) this.page.live.run(id, found.why);
    }
    return found;
  }
  open(id) {
    const found = this.toggle(id, true);
    if (!found) return;
    if (!found.row.isConnected) this.body.append(found.row, ...(found.why ? [found.why] : []));
    found.row.scrollIntoView({ block: "center", behavior: "smooth" }); found.row.focus({ preventScroll: true });
  }
  light(id) {
    for (const row of this.body.querySelectorAll("tr.lit")) row.classList.remove("lit");
    const found = id && this.rows.get(id);
    if (found) { found.row.classList.add("lit"); if (found.why) found.why.classList.add("lit"); }
  }
}

// Parse a word of the filter: a condition on a column, such as lr<0.01 or kind=adam, or a part of a row's text.
function condition(word) {
  const [, name, sign, than] = /^(.+?)(<=|>=|<|>|=)(.+)$/.exec(word) || [];
  return { word, name, sign, than };
}

// Values of a row by the names that conditions can use: its columns, and the further columns of the CSV file.
function named(told) {
  if (told.facts) return told.facts;
  told.facts = new Map();
  for (const [, name, value] of factsOf(told)) if (!told.facts.has(name.toLowerCase())) told.facts.set(name.toLowerCase(), value);
  return told.facts;
}

function passes({ word, name, sign, than }, told) {
  const value = name && named(told).get(name);
  if (value === undefined) return told.text.includes(word);
  if (sign === "=") return String(value).toLowerCase() === than || (typeof value === "number" && value === +than);
  return typeof value === "number" && (sign[0] === "<" ? value < +than : value > +than) || (sign.length > 1 && value === +than);
}

// The error in a condition, the known names, and the nearest name.
function wrong({ word, name, sign, than }, found) {
  if (!name) return "";
  const names = [...new Set(found.flatMap((told) => [...named(told).keys()]))].filter((one) => one !== "reason");
  if (names.includes(name)) return sign !== "=" && Number.isNaN(+than) ? `${word}: ${than} is not a number.` : "";
  if (!names.length || found.some((told) => told.text.includes(word))) return "";
  const [far, near] = names.map((one) => [apart(name, one), one]).sort((a, b) => a[0] - b[0])[0];
  const nearest = far < name.length && far <= Math.max(2, name.length / 3) ? ` The nearest name is ${near}.` : "";
  return `${word}: no column is called ${name}.${nearest} Columns: ${names.join(", ")}.`;
}

function apart(a, b) { // edit distance (Levenshtein)
  let last = [...Array(b.length + 1).keys()];
  [...a].forEach((letter, i) => {
    const next = [i + 1];
    [...b].forEach((other, k) => next.push(Math.min(last[k + 1] + 1, next[k] + 1, last[k] + (letter !== other))));
    last = next;
  });
  return last[b.length];
}

// A CSV cell. Text that starts like a formula gets an apostrophe, so that no spreadsheet runs it.
function celled(value) {
  if (value === undefined || value === null) return "";
  const text = String(value), guarded = typeof value === "string" && /^[=+\-@\t\r]/.test(text) && !Number.isFinite(+text) ? `'${text}` : text;
  return /[",\r\n]/.test(guarded) ? `"${guarded.replace(/"/g, '""')}"` : guarded;
}
