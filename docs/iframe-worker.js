// Browsers start no workers for pages on disk, and the search runs in one: there a hidden frame runs its script.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = Object.assign(document.createElement("iframe"), {hidden: true, srcdoc: "<body></body>"})
      this.ready = new Promise(resolve => {
        this.frame.onload = () => {
          const inside = this.frame.contentWindow
          inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}))
          const script = Object.assign(inside.document.createElement("script"), {src: url, onload: resolve})
          inside.document.body.append(script)
        }
      })
      document.body.append(this.frame)
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})))
    }
  }
