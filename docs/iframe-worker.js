// Browsers start no worker for pages opened from the disk. There, the search of the site, which is
// one, runs in a hidden frame. The plugin `offline` looks for this file's name.
if (location.protocol === "file:") {
  window.Worker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.worker = this;
      document.body.append(this.frame);
      this.loaded = new Promise((resolve) => (this.frame.onload = resolve));
      const page = this.frame.contentDocument;
      const answer = "frameElement.worker.dispatchEvent(new parent.MessageEvent('message', {data}))";
      page.open();
      page.write(`<script>postMessage = (data) => ${answer}</script><script src="${url}"></script>`);
      page.close();
    }

    postMessage(data) {
      this.loaded.then(() => {
        const inner = this.frame.contentWindow;
        inner.dispatchEvent(new inner.MessageEvent("message", { data }));
      });
    }
  };
}
