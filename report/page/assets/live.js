// A page that follows its search: of all tabs of it one listens, the others hear it from that one.

class Live {
  constructor(page, token, position) {
    this.page = page; this.token = token; this.position = position;
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
    const source = new EventSource(`events?after=${this.position}`);
    source.onopen = () => this.say("live");
    source.addEventListener("trouble", (event) => this.say(JSON.parse(event.data)));
    source.onmessage = (event) => {
      const told = JSON.parse(event.data);
      if (this.channel) this.channel.postMessage({ from: this.position, told });
      this.take(told);
    };
    source.onerror = () => {
      this.say("not connected");
      if (source.readyState === EventSource.CLOSED) { source.close(); setTimeout(() => this.listen(), 3000); }
    };
  }
  async heard({ from, told }) {
    if (from > this.position) { // this tab missed something
      try { told = await (await fetch(`changes?after=${this.position}`)).json(); } catch { return; }
    }
    this.say("live");
    this.take(told);
  }
  take(told) {
    if (told.position <= this.position) return;
    this.position = told.position;
    this.page.apply(told.items);
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
    if (action === "enqueue") { this.form(); return; }
    if (action === "stop" && !confirm("Stop the search on all machines? Runs finish their epochs and are saved; Resume lets it continue.")) return;
    this.post(action, {});
  }
  form() {
    const config = JSON.parse(document.getElementById("items").textContent).best || {};
    const dialog = made("dialog", { class: "form", "aria-label": "Enqueue a configuration" }, document.body);
    made("h2", {}, dialog, "Train this configuration next");
    const fields = Object.keys(config).map((name) => {
      const label = made("label", {}, dialog, name), field = made("input", { value: JSON.stringify(config[name]) }, label);
      return [name, field];
    });
    const row = made("div", { class: "tools" }, dialog);
    const send = made("button", { type: "button" }, row, "Enqueue"), leave = made("button", { type: "button" }, row, "Cancel");
    const close = () => { dialog.close(); dialog.remove(); };
    leave.addEventListener("click", close); dialog.addEventListener("cancel", () => dialog.remove());
    send.addEventListener("click", () => {
      const read = (text) => { try { return JSON.parse(text); } catch { return text; } };
      this.post("enqueue", { config: Object.fromEntries(fields.map(([name, field]) => [name, read(field.value)])) });
      close();
    });
    dialog.showModal();
  }
}

const meta = (name) => { const found = document.querySelector(`meta[name=haltune-${name}]`); return found && found.content; };
if (meta("token")) haltune.live = new Live(haltune.page, meta("token"), +meta("position"));
