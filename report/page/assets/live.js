// A page that follows its search: of all tabs of it one listens, the others hear it from that one.

class Live {
  constructor(page, token, mark) {
    this.page = page; this.token = token; this.mark = mark;
    this.said = document.getElementById("live"); this.say("connecting");
    this.channel = typeof BroadcastChannel === "function" ? new BroadcastChannel(location.pathname) : null;
    if (this.channel) this.channel.onmessage = (event) => this.heard(event.data);
    if (this.channel && navigator.locks) {
      this.say("live");
      navigator.locks.request(`haltune ${location.pathname}`, () => new Promise(() => this.listen())).catch(() => this.listen());
    } else this.listen();
    for (const button of document.querySelectorAll(".bar [data-do]")) button.addEventListener("click", () => this.ask(button.dataset.do));
  }
  listen() {
    const source = new EventSource(`events?after=${encodeURIComponent(this.mark)}`);
    source.onopen = () => this.state("live");
    source.addEventListener("trouble", (event) => this.state(JSON.parse(event.data)));
    source.onmessage = (event) => {
      const told = JSON.parse(event.data);
      this.state("live");
      if (this.channel) this.channel.postMessage(told);
      this.heard(told);
    };
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) { this.state("not connected: has haltune watch ended? It is tried again"); return; }
      this.refused(); // it is not tried again by itself
      setTimeout(() => this.listen(), 3000);
    };
  }
  async refused() {
    try {
      const answer = await fetch(`changes?after=${encodeURIComponent(this.mark)}`), text = await answer.text();
      if (answer.status === 404) this.state("haltune watch was started again: open the address that it printed (with --token-file it stays the same)");
      else if (!answer.ok) this.state(text);
    } catch { this.state("not connected: has haltune watch ended? It is tried again"); }
  }
  state(text) { // of the connection, which is one for all tabs
    this.say(text);
    if (this.channel) this.channel.postMessage({ state: text });
  }
  heard(told) { // in its turn: what comes while a tab asks for what it missed waits
    if (told.state !== undefined) { this.say(told.state); return; }
    this.turn = (this.turn || Promise.resolve()).then(() => this.take(told)).catch(() => {});
  }
  async take(told) {
    if (told.mark === this.mark) return;
    if (told.after !== null && told.after !== this.mark) told = await (await fetch(`changes?after=${encodeURIComponent(this.mark)}`)).json();
    this.mark = told.mark;
    this.page.apply(told.items, told.edits);
  }
  say(text) { this.said.textContent = text; this.said.dataset.state = text === "live" ? "live" : "other"; }
  async post(action, body) {
    try {
      const answer = await fetch(action, { method: "POST", body: JSON.stringify(body), headers: { "X-Haltune-Token": this.token } });
      const told = await answer.json();
      this.tell(told.said || told.error);
    } catch { this.tell("the server did not answer"); }
  }
  tell(text) {
    const note = document.getElementById("answer");
    note.textContent = text;
    clearTimeout(this.fading);
    this.fading = setTimeout(() => { note.textContent = ""; }, 8000);
  }
  ask(action) {
    const { config, limits } = this.page.form;
    if (action === "enqueue") { this.form("Train this configuration next", config, "Enqueue", (given) => this.post("enqueue", { config: given })); return; }
    if (action === "extend") {
      if (!Object.keys(limits).length) this.tell("its log holds no budget that could be raised");
      else this.form("Raise the budget", limits, "Raise", (given) => this.post("extend", { limits: given }));
      return;
    }
    if (action === "stop" && !confirm("Stop the search on all machines? Runs finish their epochs and are saved; Resume lets it continue.")) return;
    this.post(action, {});
  }
  form(title, values, word, send) {
    const dialog = made("dialog", { class: "form", "aria-label": title }, document.body);
    made("h2", {}, dialog, title);
    const fields = Object.keys(values).map((name) => {
      const label = made("label", {}, dialog, name), field = made("input", { value: JSON.stringify(values[name]) }, label);
      return [name, field];
    });
    const row = made("div", { class: "tools" }, dialog);
    const go = made("button", { type: "button" }, row, word), leave = made("button", { type: "button" }, row, "Cancel");
    const close = () => { dialog.close(); dialog.remove(); };
    leave.addEventListener("click", close); dialog.addEventListener("cancel", () => dialog.remove());
    go.addEventListener("click", () => {
      const read = (text) => { try { return JSON.parse(text); } catch { return text; } };
      send(Object.fromEntries(fields.map(([name, field]) => [name, read(field.value)])));
      close();
    });
    dialog.showModal();
  }
  run(id, row, why) { // what may be asked of one run, below its receipt
    const known = why.querySelector(".asks"), may = ["running", "lost", "interrupted", "aside", "held"].includes(row.dataset.kind);
    if (known && !may) known.remove();
    if (known || !may) return;
    const place = made("div", { class: "asks" }, why.firstElementChild), trial = +id.slice(6);
    for (const [action, word] of [["end", "End this run"], ["pause", "Pause this run"], ["continue", "Continue"]]) {
      made("button", { type: "button" }, place, word).addEventListener("click", (event) => { event.stopPropagation(); this.post(action, { trial }); });
    }
  }
}

// In a notebook's cell the notebook hands it what changed.
function follow(page, mark) {
  addEventListener("message", (event) => {
    const told = event.data;
    if (event.source !== parent || (told.after !== null && told.after !== mark)) return;
    mark = told.mark;
    page.apply(told.items, told.edits);
  });
}

const meta = (name) => { const found = document.querySelector(`meta[name=haltune-${name}]`); return found && found.content; };
if (meta("token")) haltune.page.live = new Live(haltune.page, meta("token"), meta("mark"));
if (meta("cell") !== null) follow(haltune.page, meta("mark"));
