// Staying connected.

// Own tries to come back: 1 s, 2 s, 4 s … at most this, each somewhere between half and the whole of it.
const LONGEST_WAIT = 30_000;
// A stream that misses three pings in a row is dead, however open it looks: a laptop has slept, a proxy has forgotten us.
const PINGS_MISSED = 3;

/** Keeps one stream open, and knows where it was: whoever opens the next one misses nothing and hears nothing twice.
 *
 * States: connecting, live; waiting, offline, unavailable (comes back by itself); replaced, refused (does not).
 */
class Live {
  state = "connecting";
  // The id of the last event heard of that has one.
  cursor = "";
  #server;
  #enter;
  #hear;
  #say;
  #close = () => {};
  #timer = 0;
  #tries = 0;
  // Counts connections: what an earlier one still has under way concerns nobody.
  #turn = 0;
  #heardAt = 0;
  #pingedAt = 0;
  #pingGap = 0;
  #watch = 0;

  constructor(server, { enter, hear, say }) {
    this.#server = server;
    this.#enter = enter;
    this.#hear = hear;
    this.#say = say;
  }

  async open() {
    this.close();
    const turn = this.#turn;
    const isCurrent = () => turn === this.#turn;
    try {
      await this.#enter();
    } catch (error) {
      if (!isCurrent()) return;
      if (error instanceof Refused) this.#become("refused");
      else this.#later();
      return;
    }
    if (!isCurrent()) return;
    this.#heardAt = Date.now();
    this.#watch = setInterval(() => this.#lookForSigns(), 5_000);
    this.#close = this.#server.listen(this.cursor, {
      heard: (kind, data, id) => isCurrent() && this.#take(kind, data, id),
      // The browser is on its way back already.
      paused: () => isCurrent() && this.state !== "unavailable" && this.#become(interrupted()),
      ended: (retry) => isCurrent() && this.#later(retry),
    });
  }

  close() {
    this.#turn += 1;
    this.#close();
    this.#close = () => {};
    clearTimeout(this.#timer);
    clearInterval(this.#watch);
    this.#pingedAt = 0;
  }

  /** Something has changed for the better: the network is back, somebody looks at the page. Do not wait any longer. */
  hurry() {
    if (["waiting", "offline", "unavailable"].includes(this.state)) this.open();
  }

  /** The network is gone. A stream may take minutes to notice. */
  lose() {
    if (["connecting", "live", "waiting", "unavailable"].includes(this.state)) this.#become("offline");
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    this.#say(state);
  }

  #later(retry = 0) {
    this.close();
    if (this.state !== "unavailable") this.#become(interrupted());
    const longest = Math.min(LONGEST_WAIT, 1_000 * 2 ** this.#tries);
    this.#tries += 1;
    // What the server asked for is different for each page already.
    this.#timer = setTimeout(() => this.open(), retry || longest * (0.5 + Math.random() / 2));
  }

  #take(kind, text, id) {
    this.#heardAt = Date.now();
    const data = JSON.parse(text);
    if (kind === "bye") return this.#farewell(data.reason);
    if (kind === "unavailable") return this.#become("unavailable");
    this.#tries = 0;
    this.#become("live");
    if (kind === "ping") {
      if (this.#pingedAt) this.#pingGap = Date.now() - this.#pingedAt;
      this.#pingedAt = Date.now();
    } else if (kind !== "notification" || isAfter(data.id, this.cursor)) {
      this.#hear(kind, data);
    }
    if (isAfter(id, this.cursor)) this.cursor = id;
  }

  #farewell(reason) {
    if (reason === "replaced") {
      // Coming back would close the page that took our place, and that one would come back in turn.
      this.close();
      this.#become("replaced");
    } else if (reason === "expired") {
      this.#later();
    }
  }

  #lookForSigns() {
    // How often pings come is the server's to say: before the second we do not know.
    if (this.#pingGap && Date.now() - this.#heardAt > PINGS_MISSED * this.#pingGap + 5_000) {
      this.#become(interrupted());
      this.open();
    }
  }
}

const interrupted = () => (navigator.onLine ? "waiting" : "offline");
/** Ids are whole numbers in text, longer than a Number holds exactly. */
const isAfter = (id, cursor) => id !== "" && (cursor === "" || BigInt(id) > BigInt(cursor));
