// A Worker for pages that are opened from files, where browsers allow none: its script runs in a frame of the page. The
// search needs it. Elsewhere this does nothing.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(path) {
      super();
      this.waiting = [];
      const url = new URL(path, location.href);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = frame.contentWindow, page = frame.contentDocument;
      const load = (script) => new Promise((done, failed) => {
        const tag = page.createElement("script");
        tag.src = new URL(script, url).href;
        tag.onload = done;
        tag.onerror = failed;
        page.head.appendChild(tag);
      });
      inside.importScripts = (...scripts) => scripts.reduce((before, s) => before.then(() => load(s)), Promise.resolve());
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.send = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      load(url).then(() => {
        this.ready = true;
        this.waiting.splice(0).forEach(this.send);
      });
    }
    postMessage(data) {
      if (this.ready) this.send(data);
      else this.waiting.push(data);
    }
    terminate() {}
  };
}
