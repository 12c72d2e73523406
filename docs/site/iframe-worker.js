/* Search where the site was opened from disk. Browsers start no Worker there; Material's search also runs in a frame, where
   window.IFrameWorker exists and importScripts gives a promise. */
"use strict";
if (location.protocol === "file:") {
  const load = (frame, url) => new Promise((done, failed) => {
    const script = frame.contentDocument.createElement("script");
    script.src = url;
    script.onload = done;
    script.onerror = () => failed(new Error(`${url} could not be loaded`));
    frame.contentDocument.head.append(script);
  });
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = this.inside = frame.contentWindow;
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) =>
        urls.reduce((before, next) => before.then(() => load(frame, next)), Promise.resolve());
      this.ready = load(frame, url);
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
