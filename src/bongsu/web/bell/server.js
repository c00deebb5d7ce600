// Calls to the API, and the stream.

// Where this script came from is where the API is, unless the page says otherwise.
const HOME = new URL(".", document.currentScript?.src || document.baseURI).href;

/** The server knows us not, or no longer. */
class Refused extends Error {}
/** No answer, or one that says to come back later. */
class Away extends Error {}

/** The member's side of the API, by cookie where the browser lets us have one, else with the token in a header. */
class Server {
  #base;
  #getToken;
  #onlyHeader;
  // The token to send with each call, when the cookie does not reach the server.
  #token = "";
  #isWarned = false;
  #leaving = new AbortController();

  constructor(base, getToken, onlyHeader) {
    this.#base = base;
    this.#getToken = getToken;
    this.#onlyHeader = onlyHeader;
  }

  /** Be known to the server from now on. Throws Refused when we are not. */
  async enter() {
    const token = (await this.#getToken()) || "";
    if (this.#onlyHeader) {
      if (!token) throw new Refused();
      this.#token = token;
      return;
    }
    const signal = this.#leaving.signal;
    if (token) await this.#ask("api/session", { method: "POST", headers: bearer(token), credentials: "include", signal });
    // Whether a browser keeps and sends a cookie for another site is between it and its user: we look.
    try {
      await this.#ask("api/notifications/unread-count", { credentials: "include" });
      this.#token = "";
    } catch (error) {
      if (!(error instanceof Refused && token)) throw error;
      this.#token = token;
    }
  }

  /** Another takes our place: a session that is being asked for must not replace the one that it asks for. */
  leave() {
    this.#leaving.abort();
  }

  /** One call. When the session has run out meanwhile it is renewed, once. */
  async call(path, method = "GET") {
    try {
      return await this.#ask(path, this.#options(method));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      await this.enter();
      return this.#ask(path, this.#options(method));
    }
  }

  /** The stream, from after the cursor. Tells `on` of what comes, and answers how to close it. */
  listen(cursor, on) {
    const url = new URL("api/notifications/stream", this.#base);
    if (cursor) url.searchParams.set("lastEventId", cursor);
    return this.#token ? readStream(url, bearer(this.#token), on) : openSource(url, on);
  }

  #options(method) {
    return this.#token
      ? { method, headers: bearer(this.#token), credentials: "omit" }
      : { method, credentials: "include" };
  }

  async #ask(path, options) {
    const url = new URL(path, this.#base);
    let answer;
    try {
      answer = await fetch(url, { cache: "no-store", ...options });
    } catch (error) {
      if (!options.signal?.aborted) this.#warn(url);
      throw new Away(String(error));
    }
    if (answer.status === 401 || answer.status === 403) throw new Refused();
    if (!answer.ok) throw new Away(`${answer.status}`);
    return answer.status === 204 ? null : answer.json();
  }

  /** A browser does not tell a page whether nobody answered or the page may not know the answer. */
  #warn(url) {
    if (this.#isWarned || url.origin === location.origin || !navigator.onLine) return;
    this.#isWarned = true;
    console.warn(`bongsu-bell: no answer from ${url.origin}. If it is up, add ${location.origin} to BONGSU_CORS_ORIGINS there.`);
  }
}

const bearer = (token) => ({ Authorization: `Bearer ${token}` });

// --- streams: two ways to read one, told apart by nothing else ---------------------------------------------------------

const KINDS = ["notification", "updated", "withdrawn", "read", "seen", "badge", "chat", "ping", "reset", "bye", "unavailable"];

/** By EventSource, which comes back by itself after most mishaps (`paused`), and gives up after some (`ended`). */
function openSource(url, on) {
  const source = new EventSource(url, { withCredentials: true });
  source.onerror = () => (source.readyState === EventSource.CLOSED ? on.ended() : on.paused());
  for (const kind of KINDS) source.addEventListener(kind, (event) => on.heard(kind, event.data, event.lastEventId));
  return () => source.close();
}

/** By fetch, which can send a header, and leaves coming back to us. */
function readStream(url, headers, on) {
  const stop = new AbortController();
  const frame = { kind: "", data: "", id: "", retry: 0 };
  const take = (line) => {
    if (line === "") {
      if (frame.data) on.heard(frame.kind, frame.data, frame.id);
      frame.kind = frame.data = "";
      return;
    }
    const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line);
    if (name === "event") frame.kind = value;
    else if (name === "data") frame.data += value;
    else if (name === "id") frame.id = value;
    else if (name === "retry") frame.retry = Number(value) || 0;
  };
  const read = async () => {
    const options = { headers, credentials: "omit", cache: "no-store", signal: stop.signal };
    const answer = await fetch(url, options);
    if (!answer.ok) return;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", piece; !(piece = await reader.read()).done; ) {
      const lines = (rest + piece.value).split("\n");
      rest = lines.pop();
      lines.forEach((line) => stop.signal.aborted || take(line.replace(/\r$/, "")));
    }
  };
  read()
    .catch(() => {})
    .then(() => stop.signal.aborted || on.ended(frame.retry));
  return () => stop.abort();
}
