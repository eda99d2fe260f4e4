// Runs a worker's script in a hidden frame: browsers start no worker for a page that was opened from a file.
if (location.protocol === "file:") {
  const nothing = () => {};
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = nothing;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.onmessage(event);
        this.dispatchEvent(event);
      };
      inside.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => load(inside, each)), Promise.resolve());
      this.ready = load(inside, url);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
  const load = (inside, url) =>
    new Promise((done, failed) => {
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = done;
      script.onerror = () => failed(new Error(`cannot load ${url}`));
      inside.document.body.appendChild(script);
    });
  window.Worker = window.IFrameWorker;
}
