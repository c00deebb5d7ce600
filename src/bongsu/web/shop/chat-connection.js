/* The chat's connection to the server: one WebSocket, which comes back after a break, and calls over HTTP beside it. */

// The server pings every 20 seconds: when two pings are missing, the connection is dead, whatever the browser says of it.
const SILENT_MS = 50_000;
const FIRST_WAIT_MS = 400;
const LONGEST_WAIT_MS = 15_000;
// Codes of the server after which coming back by itself would only be refused again, or take the place of another tab.
const STOPPED = { 4409: "replaced", 4429: "refused" };

export class Connection {
  #getToken;
  #onFrame;
  #onState;
  #token = "";
  #socket = null;
  #state = "";
  #isClosed = false;
  #failures = 0;
  #coming = 0;
  #silence = 0;
  #wake = () => this.#state === "waiting" && document.visibilityState === "visible" && this.open();

  /** `onFrame` gets every frame of a socket that is ready, `ready` included; `onState` one of connecting, live, waiting,
   * replaced, refused. */
  constructor(getToken, onFrame, onState) {
    this.#getToken = getToken;
    this.#onFrame = onFrame;
    this.#onState = onState;
    addEventListener("online", this.#wake);
    document.addEventListener("visibilitychange", this.#wake);
  }

  get isLive() {
    return this.#state === "live";
  }

  /** Connect, now. */
  async open() {
    clearTimeout(this.#coming);
    this.#drop();
    this.#become("connecting");
    try {
      this.#token = await this.#getToken();
      if (!this.#token) throw new Error("no token");
    } catch {
      this.#comeBack();
      return;
    }
    // It was closed, or opened again, while the token was requested.
    if (this.#isClosed || this.#socket || this.#state !== "connecting") return;
    const url = new URL("/api/chat/ws", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = (this.#socket = new WebSocket(url));
    let retry = 0;
    socket.onopen = () => socket.send(JSON.stringify({ op: "auth", token: this.#token }));
    socket.onmessage = ({ data }) => {
      if (socket !== this.#socket) return;
      this.#listen();
      const frame = JSON.parse(data);
      if (frame.op === "ready") {
        this.#failures = 0;
        this.#become("live");
      } else if (frame.op === "bye") {
        retry = frame.retry;
      }
      this.#onFrame(frame);
    };
    socket.onclose = ({ code }) => socket === this.#socket && this.#lost(code, retry);
    this.#listen();
  }

  /** For good: another member's connection takes its place. */
  close() {
    this.#isClosed = true;
    clearTimeout(this.#coming);
    removeEventListener("online", this.#wake);
    document.removeEventListener("visibilitychange", this.#wake);
    this.#drop();
  }

  /** Whether it could be sent: a frame is not kept for later. */
  send(frame) {
    if (!this.isLive || this.#socket.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  /** A call about rooms, over HTTP; what was answered. Throws if it was refused, or there was no answer. */
  async call(method, path, body = undefined) {
    let answer = await this.#request(method, path, body);
    if (answer.status === 401) {
      this.#token = await this.#getToken();
      answer = await this.#request(method, path, body);
    }
    if (!answer.ok) throw new Error(`${answer.status} for ${method} ${path}`);
    return answer.status === 204 ? null : answer.json();
  }

  #request(method, path, body) {
    const headers = { Authorization: `Bearer ${this.#token}` };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    return fetch(`/api/chat/rooms${path}`, { method, headers, credentials: "omit", body: body && JSON.stringify(body) });
  }

  #listen() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#lost(0, 0), SILENT_MS);
  }

  #lost(code, retry) {
    this.#drop();
    if (code in STOPPED) this.#become(STOPPED[code]);
    else this.#comeBack(retry);
  }

  #comeBack(retry = 0) {
    if (this.#isClosed) return;
    this.#become("waiting");
    // Doubled with each failure, and not the same for all pages that lost the same server.
    const doubled = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.#failures++);
    this.#coming = setTimeout(() => this.open(), retry || doubled * (0.75 + Math.random() / 2));
  }

  #drop() {
    clearTimeout(this.#silence);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  #become(state) {
    if (this.#isClosed || this.#state === state) return;
    this.#state = state;
    this.#onState(state);
  }
}
