// Live updates of a page: one of its tabs receives the server's events and passes them to the others.

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
    this.allow();
  }
  allow() { // show the buttons of the present actions
    for (const button of document.querySelectorAll(".bar [data-do]")) button.hidden = !this.page.form.asks.search.includes(button.dataset.do);
    for (const [id, { why }] of this.page.table ? this.page.table.rows : []) if (why && why.classList.contains("open")) this.run(id, why);
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
      if (source.readyState !== EventSource.CLOSED) { this.state("not connected; the page tries again. If haltune watch has ended, start it again"); return; }
      this.refused(); // the browser does not connect again by itself
      setTimeout(() => this.listen(), 3000);
    };
  }
  async refused() {
    try {
      const answer = await fetch(`changes?after=${encodeURIComponent(this.mark)}`), text = await answer.text();
      if (answer.status === 404) this.state("haltune watch was started again. Open the address that it printed (with --token-file the address stays the same)");
      else if (!answer.ok) this.state(text);
    } catch { this.state("not connected; the page tries again. If haltune watch has ended, start it again"); }
  }
  state(text) { // of the connection that all tabs share
    this.say(text);
    if (this.channel) this.channel.postMessage({ state: text });
  }
  heard(told) { // in order: new events wait while a tab fetches those that it missed
    if (told.state !== undefined) { this.say(told.state); return; }
    this.turn = (this.turn || Promise.resolve()).then(() => this.take(told)).catch(() => {});
  }
  async take(told) {
    if (told.mark === this.mark) return;
    if (told.after !== null && told.after !== this.mark) told = await (await fetch(`changes?after=${encodeURIComponent(this.mark)}`)).json();
    this.mark = told.mark;
    this.page.apply(told.items, told.patches);
  }
  say(text) { this.said.textContent = text; this.said.dataset.state = text === "live" ? "live" : "other"; }
  async post(action, body) { // returns [success, the server's message]
    try {
      const answer = await fetch(action, { method: "POST", body: JSON.stringify(body), headers: { "X-Haltune-Token": this.token } });
      const told = await answer.json();
      return [answer.ok, told.said || told.error];
    } catch { return [false, "The server did not answer. Try again"]; }
  }
  async send(action, body) { this.tell((await this.post(action, body))[1]); }
  tell(text) {
    const note = document.getElementById("answer");
    note.textContent = text;
    clearTimeout(this.fading);
    this.fading = setTimeout(() => { note.textContent = ""; }, 8000);
  }
  ask(action) {
    const { config, limits } = this.page.form;
    if (action === "enqueue") { this.form("Train this configuration next", config, "Enqueue", (given) => this.post("enqueue", { config: given })); return; }
    if (action === "extend") { this.form("Raise the budget", limits, "Raise", (given) => this.post("extend", { limits: given })); return; }
    if (action === "stop" && !confirm("Stop the search on all machines? Trials end at their next report and are saved; Resume lets it continue.")) return;
    this.send(action, {});
  }
  form(title, values, word, send, text = false) { // keeps the input until the action succeeds; text: of texts, not of JSON
    const dialog = made("dialog", { class: "form", "aria-label": title }, document.body), form = made("form", {}, dialog);
    made("h2", {}, form, title);
    const fields = Object.keys(values).map((name) => {
      const label = made("label", {}, form, name), field = made("input", { value: text ? values[name] : JSON.stringify(values[name]) }, label);
      return [name, field];
    });
    const trouble = made("p", { class: "trouble", role: "alert" }, form), row = made("div", { class: "tools" }, form);
    const go = made("button", { type: "submit" }, row, word), leave = made("button", { type: "button" }, row, "Cancel");
    leave.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const read = (given) => { if (text) return given; try { return JSON.parse(given); } catch { return given; } };
      go.disabled = true;
      const [done, said] = await send(Object.fromEntries(fields.map(([name, field]) => [name, read(field.value)])));
      go.disabled = false;
      if (done) { dialog.close(); this.tell(said); } else trouble.textContent = said;
    });
    dialog.showModal();
  }
  async output(trial) { // the end of what a trial printed
    const dialog = made("dialog", { class: "form output", "aria-label": `Output of trial ${trial}` }, document.body);
    made("h2", {}, dialog, `Output of trial ${trial}`);
    const text = made("pre", { tabindex: "0" }, dialog, "..."), row = made("div", { class: "tools" }, dialog);
    made("button", { type: "button" }, row, "Close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    dialog.showModal();
    try {
      const answer = await fetch(`output/${trial}`);
      text.textContent = (await answer.text()) || "It printed nothing.";
    } catch { text.textContent = "The server did not answer. Try again"; }
    text.scrollTop = text.scrollHeight;
  }
  run(id, why) { // buttons for one trial, below its explanation
    const trial = +id.slice(6), may = this.page.form.asks.runs[trial] || [];
    let place = why.querySelector(".asks");
    if (!place) {
      place = made("div", { class: "asks" }, why.firstElementChild);
      for (const [action, word] of [["end", "End this trial"], ["pause", "Pause this trial"], ["continue", "Continue"]]) {
        made("button", { type: "button", "data-do": action }, place, word).addEventListener("click", (event) => { event.stopPropagation(); this.send(action, { trial }); });
      }
      made("button", { type: "button" }, place, "Output").addEventListener("click", (event) => { event.stopPropagation(); this.output(trial); });
      made("button", { type: "button", "data-hide": "" }, place).addEventListener("click", (event) => {
        event.stopPropagation();
        const { note } = why.querySelector(".because").dataset;
        this.send("note", { trial, text: this.page.away.has(id) ? note.replace(HIDDEN, "").trim() : `${note} #hidden`.trim() });
      });
      made("button", { type: "button" }, place, "Note").addEventListener("click", (event) => {
        event.stopPropagation();
        this.form(`Note on trial ${trial}`, { note: why.querySelector(".because").dataset.note }, "Save", ({ note }) => this.post("note", { trial, text: note }), true);
      });
    }
    place.querySelector("[data-hide]").textContent = this.page.away.has(id) ? "Show again" : "Hide";
    for (const button of place.querySelectorAll("[data-do]")) button.hidden = !may.includes(button.dataset.do);
  }
}

// In a notebook's cell, the notebook passes the changes.
function follow(page, mark) {
  addEventListener("message", (event) => {
    const told = event.data;
    if (event.source !== parent || (told.after !== null && told.after !== mark)) return;
    mark = told.mark;
    page.apply(told.items, told.patches);
  });
}

const meta = (name) => { const found = document.querySelector(`meta[name=haltune-${name}]`); return found && found.content; };
if (meta("token")) haltune.page.live = new Live(haltune.page, meta("token"), meta("mark"));
if (meta("cell") !== null) follow(haltune.page, meta("mark"));
