/* <bongsu-bell>: a member's notifications, on any page.
 *
 *   <script src="https://notify.example/bongsu-bell.js" defer></script>
 *   <bongsu-bell></bongsu-bell>
 *
 * docs/howto/bell.md says what can be set. Read from the bottom: Bell is what a page sees, Live keeps its stream open, Server
 * makes its calls. What notifications say is only ever put in as text, and styles go in as a sheet: a page may forbid inline
 * styles, inline scripts and HTML from strings, and the bell still rings.
 */
(() => {
  "use strict";
  if (customElements.get("bongsu-bell")) return;

  // Where this script came from is where the API is, unless the page says otherwise.
  const HOME = new URL(".", document.currentScript?.src || document.baseURI).href;
  const PAGE_SIZE = 20;
  // Own tries to come back: 1 s, 2 s, 4 s … at most this, each somewhere between half and the whole of it.
  const LONGEST_WAIT = 30_000;
  // A stream that misses three pings in a row is dead, however open it looks: a laptop has slept, a proxy has forgotten us.
  const PINGS_MISSED = 3;

  // --- words ---------------------------------------------------------------------------------------------------------

  const WORDS = {
    en: {
      title: "Notifications",
      unread: (count) => (count === 0 ? "none unread" : `${count} unread`),
      unreadMark: "Unread",
      readAll: "Mark all as read",
      older: "Show older",
      close: "Close",
      empty: "No notifications yet",
      emptyHint: "When there is news, it will be here.",
      loading: "Loading…",
      arrived: (title) => `New notification: ${title}`,
      arrivedMany: (count) => `${count} new notifications`,
      failed: "That did not work. Please try again.",
      connecting: "Connecting…",
      waiting: "Connection lost. Reconnecting…",
      offline: "You are offline. Nothing will be missed.",
      unavailable: "Live updates are paused. Reconnecting…",
      replaced: "Live updates moved to a newer tab.",
      refused: "Please sign in again.",
      again: "Try again",
      here: "Use this tab",
    },
    ko: {
      title: "알림",
      unread: (count) => (count === 0 ? "읽지 않은 알림 없음" : `읽지 않은 알림 ${count}개`),
      unreadMark: "읽지 않음",
      readAll: "모두 읽음으로 표시",
      older: "이전 알림 보기",
      close: "닫기",
      empty: "아직 알림이 없어요",
      emptyHint: "새 소식이 오면 여기에 보여 드릴게요.",
      loading: "불러오는 중…",
      arrived: (title) => `새 알림: ${title}`,
      arrivedMany: (count) => `새 알림 ${count}개`,
      failed: "처리하지 못했어요. 다시 시도해 주세요.",
      connecting: "연결하는 중…",
      waiting: "연결이 끊겼어요. 다시 연결하는 중…",
      offline: "오프라인이에요. 다시 연결되면 이어서 알려 드릴게요.",
      unavailable: "실시간 알림이 잠시 멈췄어요. 다시 연결하는 중…",
      replaced: "새로 연 탭에서 실시간 알림을 받고 있어요.",
      refused: "다시 로그인해 주세요.",
      again: "다시 시도",
      here: "이 탭에서 받기",
    },
  };

  // --- calls ---------------------------------------------------------------------------------------------------------

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

  const KINDS = ["notification", "withdrawn", "badge", "chat", "ping", "reset", "bye", "unavailable"];

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

  // --- staying connected -----------------------------------------------------------------------------------------------

  /** Keeps one stream open, and knows where it was: whoever opens the next one misses nothing and hears nothing twice.
   *
   * States: connecting, live; waiting, offline, unavailable (comes back by itself); replaced, refused (does not).
   */
  class Live {
    state = "connecting";
    // The id of the last notification heard of.
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

  // --- what is shown ----------------------------------------------------------------------------------------------------

  // 24 × 24, drawn with a stroke.
  const ICONS = {
    bell: "M6 9.5a6 6 0 0 1 12 0c0 5.2 2 6.7 2 6.7H4s2-1.5 2-6.7 M10 19.6a2.2 2.2 0 0 0 4 0",
    close: "M6.5 6.5l11 11 M17.5 6.5l-11 11",
    checks: "M3.5 12.8l3.9 3.9L15 8.4 M11.6 15.6l1.5 1.4 7.7-8.6",
    cloud: "M7.2 18.5a4.3 4.3 0 0 1-.5-8.5 5.8 5.8 0 0 1 11.1 1.3 3.7 3.7 0 0 1-.6 7.2z",
    PRICE_DROP: "M4 7l6 6 3.5-3.5L20 16 M20 11.2V16h-4.8",
    BACK_IN_STOCK: "M4.5 8.2L12 4l7.5 4.2v7.6L12 20l-7.5-4.2z M4.5 8.2L12 12.4l7.5-4.2 M12 12.4V20",
    RECOMMENDATION: "M12 4l2.2 5.2 5.6.5-4.2 3.7 1.2 5.5L12 16l-4.8 2.9 1.2-5.5-4.2-3.7 5.6-.5z",
    FOLLOW: "M10 11.4a3.4 3.4 0 1 0 0-6.8 3.4 3.4 0 0 0 0 6.8z M3.8 19.4c.5-3.3 3-5.2 6.2-5.2s5.7 1.9 6.2 5.2 M18.4 8v5 M15.9 10.5h5",
    POST_LIKE: "M12 19.4s-7.4-4.3-7.4-9.3a4 4 0 0 1 7.4-2.1 4 4 0 0 1 7.4 2.1c0 5-7.4 9.3-7.4 9.3z",
    POST_COMMENT: "M5 5.5h14v9.8h-7l-4 3.7v-3.7H5z",
    VOTE_CLOSED: "M6 19v-7 M12 19V5 M18 19v-10",
    RESERVATION_CONFIRMED: "M5 6.5h14V19H5z M5 10.3h14 M8.8 4.5v3.6 M15.2 4.5v3.6 M9.2 14.6l2 2 3.8-3.8",
    NOTICE: "M4.5 10v4h3l7 4V6l-7 4z M17.6 9.5a4 4 0 0 1 0 5",
  };

  function icon(name) {
    const SVG = "http://www.w3.org/2000/svg";
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", ICONS[Object.hasOwn(ICONS, name) ? name : "bell"]);
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("aria-hidden", "true");
    svg.append(path);
    return svg;
  }

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  /** "3 minutes ago", and for what is older than a week the day. */
  function ago(when, lang) {
    const seconds = Math.round((when - Date.now()) / 1000);
    const relative = new Intl.RelativeTimeFormat(lang, { numeric: "auto" });
    if (seconds > -45) return relative.format(0, "second");
    if (seconds > -3_600) return relative.format(Math.round(seconds / 60) || -1, "minute");
    if (seconds > -86_400) return relative.format(Math.round(seconds / 3_600), "hour");
    if (seconds > -604_800) return relative.format(Math.round(seconds / 86_400), "day");
    return new Intl.DateTimeFormat(lang, { dateStyle: "medium" }).format(when);
  }

  const DARK = `
    --_surface: var(--bongsu-surface, #1b1e25); --_raised: var(--bongsu-hover, #262a33); --_text: var(--bongsu-text, #eceef2);
    --_muted: var(--bongsu-muted, #a0a7b4); --_line: var(--bongsu-line, #30353f); --_accent: var(--bongsu-accent, #ff8a5c);
    --_tint: var(--bongsu-tint, #3a2a24); --_badge: var(--bongsu-badge, #f0492c); --_badge-text: var(--bongsu-badge-text, #fff);
    --_warn: var(--bongsu-warn, #ffc25c); --_warn-tint: var(--bongsu-warn-tint, #332b1c);
    --_shadow: var(--bongsu-shadow, 0 18px 48px rgb(0 0 0 / .55), 0 2px 8px rgb(0 0 0 / .4));
    color-scheme: dark;`;

  const LOOK = `
    :host {
      --_surface: var(--bongsu-surface, #fff); --_raised: var(--bongsu-hover, #f4f5f7); --_text: var(--bongsu-text, #1c1f26);
      --_muted: var(--bongsu-muted, #667080); --_line: var(--bongsu-line, #e7e9ee); --_accent: var(--bongsu-accent, #c8401b);
      --_tint: var(--bongsu-tint, #fdeee8); --_badge: var(--bongsu-badge, #d93a16); --_badge-text: var(--bongsu-badge-text, #fff);
      --_warn: var(--bongsu-warn, #8a5a00); --_warn-tint: var(--bongsu-warn-tint, #fff6e0);
      --_shadow: var(--bongsu-shadow, 0 18px 48px rgb(20 24 36 / .16), 0 2px 8px rgb(20 24 36 / .08));
      --_size: var(--bongsu-size, 40px); --_radius: var(--bongsu-radius, 16px);
      display: inline-block; color-scheme: light;
      font: 400 14px/1.45 var(--bongsu-font, system-ui, -apple-system, "Segoe UI", "Apple SD Gothic Neo", "Noto Sans KR", sans-serif);
    }
    @media (prefers-color-scheme: dark) { :host(:not([theme="light"])) { ${DARK} } }
    :host([theme="dark"]) { ${DARK} }
    :host([hidden]), [hidden] { display: none !important; }
    * { box-sizing: border-box; }
    button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; text-align: start; }
    :focus { outline: none; }
    :focus-visible { outline: 2px solid var(--_accent); outline-offset: 2px; }
    svg { width: 1em; height: 1em; fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linecap: round; stroke-linejoin: round; }
    .unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }

    .bell { position: relative; display: grid; place-items: center; width: var(--_size); height: var(--_size); border-radius: 50%;
      color: var(--bongsu-bell, inherit); transition: background .15s; }
    .bell:hover, .bell[aria-expanded="true"] { background: var(--bongsu-bell-hover, color-mix(in srgb, currentColor 8%, transparent)); }
    .bell svg { font-size: calc(var(--_size) * .58); transform-origin: 50% 15%; }
    .bell.is-interrupted svg { opacity: .5; }
    .badge { position: absolute; inset-block-start: 1px; inset-inline-start: 54%; min-width: 18px; height: 18px; padding: 0 5px;
      border-radius: 9px; background: var(--_badge); color: var(--_badge-text); font-size: 11px; font-weight: 700; line-height: 18px;
      text-align: center; font-variant-numeric: tabular-nums; }
    .lamp { position: absolute; inset-block-end: 6px; inset-inline-end: 6px; width: 8px; height: 8px; border-radius: 50%;
      background: var(--_warn); }

    .panel { position: fixed; inset: auto; z-index: 2147483000; margin: 0; padding: 0; border: 1px solid var(--_line); flex-direction: column;
      width: min(var(--bongsu-width, 380px), calc(100vw - 16px)); border-radius: var(--_radius); overflow: hidden;
      background: var(--_surface); color: var(--_text); box-shadow: var(--_shadow); }
    .panel:not([hidden]) { display: flex; }
    header { display: flex; align-items: center; gap: 4px; padding: 14px 10px 10px 18px; }
    h2 { flex: 1; margin: 0; font-size: 16px; font-weight: 700; letter-spacing: -.01em; }
    .tool { display: grid; place-items: center; width: 32px; height: 32px; border-radius: 50%; font-size: 19px; color: var(--_muted); }
    .tool:hover:enabled { background: var(--_raised); color: var(--_text); }
    .tool:disabled { opacity: .4; cursor: default; }
    .state { display: flex; align-items: center; gap: 10px; margin: 0 10px 8px; padding: 8px 12px; border-radius: 10px;
      background: var(--_warn-tint); color: var(--_warn); font-size: 13px; }
    .state svg { flex: none; font-size: 18px; }
    .state span { flex: 1; }
    .state button { flex: none; font-weight: 600; text-decoration: underline; text-underline-offset: 2px; }

    .scroll { overflow-y: auto; overscroll-behavior: contain; min-height: 0; padding: 0 6px 6px; }
    ol { list-style: none; margin: 0; padding: 0; }
    .item { position: relative; display: grid; grid-template-columns: 36px 1fr auto; column-gap: 12px; width: 100%; padding: 10px 12px;
      border-radius: 12px; }
    .item:hover { background: var(--_raised); }
    .item:focus-visible { outline-offset: -2px; }
    .disc { grid-row: 1 / 3; display: grid; place-items: center; width: 36px; height: 36px; border-radius: 50%; font-size: 19px;
      background: var(--_raised); color: var(--_muted); }
    .item.is-unread .disc { background: var(--_tint); color: var(--_accent); }
    .item b { font-weight: 500; overflow-wrap: anywhere; color: var(--_muted); }
    .item.is-unread b { font-weight: 650; color: var(--_text); }
    .item time { padding-top: 1px; font-size: 12px; color: var(--_muted); white-space: nowrap; }
    .item p { grid-column: 2 / 4; margin: 1px 0 0; padding-inline-end: 16px; color: var(--_muted); overflow-wrap: anywhere;
      display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 3; overflow: hidden; }
    .item.is-unread p { color: color-mix(in srgb, var(--_text) 82%, var(--_surface)); }
    .item.is-unread::after { content: ""; position: absolute; inset-inline-end: 14px; inset-block-end: 16px; width: 8px; height: 8px;
      border-radius: 50%; background: var(--_accent); }
    .older { display: block; width: 100%; padding: 10px; border-radius: 12px; text-align: center; font-weight: 600; color: var(--_accent); }
    .older:hover { background: var(--_raised); }
    .none { padding: 36px 24px 44px; text-align: center; color: var(--_muted); }
    .none svg { font-size: 44px; stroke-width: 1.2; opacity: .6; }
    .none strong { display: block; margin: 10px 0 2px; font-size: 15px; font-weight: 600; color: var(--_text); }

    @media (prefers-reduced-motion: no-preference) {
      .bell.rings svg { animation: ring .9s ease-in-out; }
      .panel { animation: rise .14s ease-out; }
      .item.is-new { animation: arrive 2s ease-out; }
    }
    @keyframes ring { 0%, 100% { rotate: 0deg; } 15% { rotate: 16deg; } 35% { rotate: -13deg; } 55% { rotate: 9deg; } 75% { rotate: -5deg; } }
    @keyframes rise { from { opacity: 0; translate: 0 -6px; } }
    @keyframes arrive { from { background: var(--_tint); } }
  `;

  // --- the element -------------------------------------------------------------------------------------------------------

  class Bell extends HTMLElement {
    static observedAttributes = ["server", "token", "auth", "lang"];

    #getToken = null;
    #token = "";
    #server = null;
    #live = null;
    // The notifications shown, by id; and where the next page begins.
    #items = new Map();
    #next = null;
    // Ids withdrawn while this page is open: an answer of the inbox that is under way may still have them.
    #withdrawn = new Set();
    #unread = 0;
    #isLoaded = false;
    // News since the last badge: a badge that they do not account for means that something happened elsewhere.
    #arrived = 0;
    #isStale = false;
    #mistake = "";
    #announced = [];
    #timers = {};
    #rows = new Map();
    #page = null;
    #ui;

    constructor() {
      super();
      this.#ui = this.#build(this.attachShadow({ mode: "open" }));
      // What a page set before this script ran are properties of the element itself, and hide the setters below.
      for (const name of ["getToken", "token"]) {
        if (!Object.hasOwn(this, name)) continue;
        const value = this[name];
        delete this[name];
        this[name] = value;
      }
    }

    /** An async function that gives the member's token, asked each time one is needed. Goes before `token`. */
    get getToken() { return this.#getToken; }
    set getToken(value) {
      if (this.#isSame(value, this.#getToken)) return;
      this.#getToken = value;
      this.#beginSoon();
    }
    /** Set from a script, it does not stand in the page for everybody to read. */
    get token() { return this.#token || this.getAttribute("token") || ""; }
    set token(value) {
      if (this.#isSame(value || "", this.#token)) return;
      this.#token = value || "";
      this.#beginSoon();
    }
    /** How many are unread. */
    get unread() { return this.#unread; }
    /** How it stands with the stream: one of the states of Live. */
    get state() { return this.#live?.state ?? "connecting"; }
    get isOpen() { return !this.#ui.panel.hidden; }

    connectedCallback() {
      this.#page = new AbortController();
      const on = (target, kind, act) => target.addEventListener(kind, act, { signal: this.#page.signal });
      on(window, "online", () => this.#live.hurry());
      on(window, "offline", () => this.#live.lose());
      on(document, "visibilitychange", () => document.visibilityState === "visible" && this.#live.hurry());
      // A page kept for "back" must not hold a stream, and one that is shown again needs a new one.
      on(window, "pagehide", () => this.#live.close());
      on(window, "pageshow", (event) => event.persisted && this.#live.open());
      on(window, "resize", () => this.isOpen && this.#place());
      on(window, "scroll", () => this.isOpen && this.#place());
      on(document, "pointerdown", (event) => event.composedPath().includes(this) || this.close());
      this.#begin();
    }

    disconnectedCallback() {
      this.close();
      this.#page.abort();
      this.#live.close();
      Object.values(this.#timers).forEach(clearTimeout);
    }

    attributeChangedCallback(name, before, after) {
      if (before === after) return;
      if (name === "lang") this.#paint();
      else this.#beginSoon();
    }

    /** Open the stream anew: after a refusal, or in place of the page that replaced this one. */
    reconnect() {
      if (this.isConnected) this.#live?.open();
    }

    open() {
      if (this.isOpen) return;
      this.#ui.panel.hidden = false;
      // Above whatever the page has, and cut off by nothing.
      this.#ui.panel.showPopover?.();
      this.#paint();
      this.#place();
      (this.#buttons()[0] ?? this.#ui.panel).focus();
      this.#timers.clock = setInterval(() => this.#paint(), 30_000);
      if (this.#isStale) this.#refresh();
    }

    close() {
      if (!this.isOpen) return;
      const hadFocus = this.shadowRoot.activeElement !== null;
      clearInterval(this.#timers.clock);
      this.#ui.panel.hidePopover?.();
      this.#ui.panel.hidden = true;
      this.#mistake = "";
      this.#paint();
      if (hadFocus) this.#ui.bell.focus();
    }

    // --- from the server -------------------------------------------------------------------------------------------------

    /** Another server, or another member: everything from the beginning. */
    #begin() {
      this.#server?.leave();
      this.#live?.close();
      this.#items.clear();
      this.#withdrawn.clear();
      this.#announced = [];
      this.#next = null;
      this.#isLoaded = this.#isStale = false;
      this.#unread = this.#arrived = 0;
      this.#mistake = "";
      const base = new URL(this.getAttribute("server") || HOME, document.baseURI).href.replace(/\/*$/, "/");
      const getToken = this.#getToken ?? (() => this.token);
      const isByHeader = this.getAttribute("auth") === "header";
      const server = (this.#server = new Server(base, getToken, isByHeader));
      const live = (this.#live = new Live(server, {
        enter: async () => {
          await server.enter();
          if (!this.#isLoaded) await this.#load(true);
        },
        hear: (kind, data) => this.#hear(kind, data),
        say: (state) => this.#sayState(state),
      }));
      this.#paint();
      // A page that promises a token gets the time to bring it.
      if (!isByHeader || this.#getToken || this.token) live.open();
    }

    /** Frameworks set a property again whenever they render: that must not open the stream anew. After a refusal it does. */
    #isSame(value, before) {
      return value === before && this.state !== "refused";
    }

    /** Several things may be set together. */
    #beginSoon() {
      clearTimeout(this.#timers.begin);
      // Not on a page yet: it begins when it is.
      if (this.#page && !this.#page.signal.aborted) this.#timers.begin = setTimeout(() => this.#begin());
    }

    #hear(kind, data) {
      if (kind === "notification") this.#arrive(data);
      else if (kind === "withdrawn") this.#withdraw(data.id);
      else if (kind === "badge") this.#setBadge(data.unread);
      else if (kind === "reset") this.#load(true).catch(() => (this.#isStale = true));
      else if (kind === "chat") this.#tell("chat", data);
    }

    #arrive(data) {
      if (this.#withdrawn.has(data.id)) return;
      this.#arrived += 1;
      const item = { ...data, readAt: null, isNew: true };
      this.#items.set(item.id, item);
      this.#ui.bell.classList.remove("rings");
      requestAnimationFrame(() => this.#ui.bell.classList.add("rings"));
      this.#announce(item);
      this.#paint();
      this.#tell("notification", data);
    }

    /** It is no longer in the inbox. The number of unread ones follows in a badge. */
    #withdraw(id) {
      this.#withdrawn.add(id);
      const item = this.#items.get(id);
      if (item) {
        if (!item.readAt) this.#arrived -= 1;
        this.#items.delete(id);
        this.#announced = this.#announced.filter((one) => one.id !== id);
        const focused = this.shadowRoot.activeElement;
        const place = focused?.dataset.id === id ? this.#buttons().indexOf(focused) : -1;
        this.#paint();
        // Focus goes to the row that takes its place. In an empty list it goes to the panel, so that keys still work.
        if (place >= 0 && this.#items.size) this.#focusItem(place);
        else if (place >= 0) this.#ui.panel.focus();
      }
      this.#tell("withdrawn", { id });
    }

    #setBadge(unread) {
      const isExpected = unread - this.#unread === this.#arrived;
      this.#arrived = 0;
      this.#setUnread(unread);
      if (isExpected) return;
      // Read on another page, or written to the inbox without a word on the stream.
      this.#isStale = true;
      if (this.isOpen) this.#refresh();
    }

    #setUnread(unread) {
      const isNews = unread !== this.#unread;
      this.#unread = unread;
      if (unread === 0) for (const item of this.#items.values()) item.readAt ??= new Date().toISOString();
      this.#paint();
      if (isNews) this.#tell("badge", { unread });
    }

    #sayState(state) {
      this.#paint();
      this.#tell("state", { state });
      if (state === "refused") this.#tell("unauthorized", {});
    }

    /** The newest page of the inbox: instead of what we have, or over it. */
    async #load(isAnew) {
      const server = this.#server;
      const page = await server.call(`api/notifications?limit=${PAGE_SIZE}`);
      if (server !== this.#server) return;
      const newest = page.items[0]?.id ?? "";
      if (isAnew) {
        for (const id of this.#items.keys()) if (!isAfter(id, newest)) this.#items.delete(id);
        this.#next = page.next;
      }
      this.#keep(page.items);
      if (!this.#isLoaded) this.#live.cursor = newest;
      this.#isLoaded = true;
      this.#isStale = false;
      this.#setUnread(page.unread);
    }

    #keep(items) {
      for (const item of items) if (!this.#withdrawn.has(item.id)) this.#items.set(item.id, item);
    }

    #refresh() {
      clearTimeout(this.#timers.refresh);
      this.#timers.refresh = setTimeout(() => this.#load(false).catch(() => {}), 100);
    }

    async #loadOlder() {
      const before = this.#buttons().length;
      await this.#try(async () => {
        const page = await this.#server.call(`api/notifications?limit=${PAGE_SIZE}&cursor=${this.#next}`);
        this.#keep(page.items);
        this.#next = page.next;
      });
      this.#focusItem(before);
    }

    // --- what the member does --------------------------------------------------------------------------------------------

    /** Shown at once, and taken back if the server does not agree. */
    async #read(item) {
      if (!this.#tell("select", item, true) || item.readAt) return;
      item.readAt = new Date().toISOString();
      this.#setUnread(Math.max(0, this.#unread - 1));
      await this.#try(async () => {
        const answer = await this.#server.call(`api/notifications/${item.id}/read`, "POST");
        this.#setUnread(answer.unread);
      });
    }

    async #readAll() {
      this.#setUnread(0);
      await this.#try(async () => this.#setUnread((await this.#server.call("api/notifications/read-all", "POST")).unread));
    }

    async #try(act) {
      this.#mistake = "";
      try {
        await act();
      } catch (error) {
        this.#mistake = "failed";
        this.#load(true).catch(() => (this.#isStale = true));
      }
      this.#paint();
    }

    /** Tell the page. False if it has said no to what would come next. */
    #tell(name, detail, cancelable = false) {
      return this.dispatchEvent(new CustomEvent(`bongsu:${name}`, { detail, cancelable, bubbles: true, composed: true }));
    }

    // --- keys ------------------------------------------------------------------------------------------------------------

    #buttons() {
      return [...this.#ui.list.querySelectorAll("button")];
    }

    /** One of the items is in the way of the Tab key, and the arrows lead to the others. */
    #focusItem(place) {
      const buttons = this.#buttons();
      const chosen = buttons[Math.max(0, Math.min(place, buttons.length - 1))];
      if (!chosen) return;
      for (const button of buttons) button.tabIndex = button === chosen ? 0 : -1;
      chosen.focus();
    }

    #pressed(event) {
      const buttons = this.#buttons();
      const place = buttons.indexOf(this.shadowRoot.activeElement);
      const way = {
        Escape: () => this.close(),
        ArrowDown: () => (this.isOpen ? this.#focusItem(place + 1) : this.open()),
        ArrowUp: () => this.isOpen && this.#focusItem(place < 0 ? buttons.length - 1 : place - 1),
        Home: () => this.isOpen && this.#focusItem(0),
        End: () => this.isOpen && this.#focusItem(buttons.length - 1),
      }[event.key];
      if (!way || (event.key === "Escape" && !this.isOpen)) return;
      event.preventDefault();
      // Escape closes the panel, and not also the dialog it may stand in.
      event.stopPropagation();
      way();
    }

    // --- painting --------------------------------------------------------------------------------------------------------

    #build(root) {
      const look = new CSSStyleSheet();
      look.replaceSync(LOOK);
      root.adoptedStyleSheets = [look];
      const badge = make("span", { class: "badge", part: "badge", "aria-hidden": "true" });
      const lamp = make("span", { class: "lamp", part: "lamp", "aria-hidden": "true" });
      const bell = make(
        "button",
        { class: "bell", part: "bell", type: "button", "aria-haspopup": "dialog", "aria-controls": "panel" },
        icon("bell"), badge, lamp,
      );
      const said = make("div", { class: "unseen", role: "status", "aria-live": "polite" });
      const title = make("h2", { id: "title" });
      const readAll = make("button", { class: "tool", part: "read-all", type: "button" }, icon("checks"));
      const close = make("button", { class: "tool", part: "close", type: "button" }, icon("close"));
      const stateText = make("span");
      const stateButton = make("button", { type: "button" });
      const state = make("div", { class: "state", part: "state", role: "status" }, icon("cloud"), stateText, stateButton);
      const list = make("ol", { part: "list", role: "list", "aria-labelledby": "title" });
      const older = make("button", { class: "older", part: "older", type: "button" });
      const noneTitle = make("strong");
      const noneHint = make("span");
      const none = make("div", { class: "none", part: "empty" }, icon("bell"), noneTitle, noneHint);
      const panel = make(
        "section",
        { class: "panel", part: "panel", id: "panel", role: "dialog", "aria-labelledby": "title", tabindex: "-1", popover: "manual", hidden: "" },
        make("header", {}, title, readAll, close), state, make("div", { class: "scroll" }, list, none, older),
      );
      root.append(bell, panel, said);
      bell.addEventListener("click", () => (this.isOpen ? this.close() : this.open()));
      close.addEventListener("click", () => this.close());
      readAll.addEventListener("click", () => this.#readAll());
      older.addEventListener("click", () => this.#loadOlder());
      stateButton.addEventListener("click", () => this.reconnect());
      root.addEventListener("keydown", (event) => this.#pressed(event));
      // Whoever leaves by Tab has finished; a click is looked at where it lands.
      panel.addEventListener("focusout", ({ relatedTarget }) => relatedTarget && !root.contains(relatedTarget) && this.close());
      return { bell, badge, lamp, said, title, readAll, close, state, stateText, stateButton, list, older, none, noneTitle, noneHint, panel };
    }

    #lang() {
      const lang = this.closest("[lang]")?.lang || navigator.language;
      return lang.toLowerCase().startsWith("ko") ? "ko" : "en";
    }

    #paint() {
      const ui = this.#ui;
      const words = WORDS[this.#lang()];
      const isInterrupted = !["live", "connecting"].includes(this.state);
      const count = words.unread(this.#unread);
      // For the page's own styles: bongsu-bell[state="waiting"] …
      this.setAttribute("state", this.state);
      ui.bell.setAttribute("aria-label", [words.title, count, ...(isInterrupted ? [words[this.state]] : [])].join(", "));
      ui.bell.setAttribute("aria-expanded", String(this.isOpen));
      ui.bell.classList.toggle("is-interrupted", isInterrupted);
      ui.badge.hidden = this.#unread === 0;
      ui.badge.textContent = this.#unread > 99 ? "99+" : String(this.#unread);
      ui.lamp.hidden = !isInterrupted;
      if (this.isOpen) this.#paintPanel(words, isInterrupted);
    }

    #paintPanel(words, isInterrupted) {
      const ui = this.#ui;
      ui.title.textContent = words.title;
      for (const [button, name] of [[ui.readAll, words.readAll], [ui.close, words.close]]) {
        button.setAttribute("aria-label", name);
        button.title = name;
      }
      ui.readAll.disabled = this.#unread === 0;
      const state = isInterrupted ? this.state : this.#mistake;
      ui.state.hidden = !state;
      setText(ui.stateText, state ? words[state] : "");
      ui.stateButton.hidden = !["replaced", "refused"].includes(state);
      ui.stateButton.textContent = state === "replaced" ? words.here : words.again;
      ui.none.hidden = this.#items.size > 0;
      ui.noneTitle.textContent = this.#isLoaded ? words.empty : isInterrupted ? "" : words.loading;
      ui.noneHint.textContent = this.#isLoaded ? words.emptyHint : "";
      ui.older.hidden = this.#next === null;
      ui.older.textContent = words.older;
      this.#paintList(words);
    }

    /** Rows stay what they are, so that focus stays where it is; new ones go in between. */
    #paintList(words) {
      const items = [...this.#items.values()].sort((a, b) => (isAfter(a.id, b.id) ? -1 : 1));
      for (const [id, row] of this.#rows) {
        if (this.#items.has(id)) continue;
        row.remove();
        this.#rows.delete(id);
      }
      items.forEach((item, place) => {
        let row = this.#rows.get(item.id);
        if (!row) this.#rows.set(item.id, (row = this.#makeRow(item)));
        if (this.#ui.list.children[place] !== row) this.#ui.list.insertBefore(row, this.#ui.list.children[place] ?? null);
        this.#paintRow(row, item, words);
      });
      const buttons = this.#buttons();
      if (buttons.length && !buttons.some((button) => button.tabIndex === 0)) buttons[0].tabIndex = 0;
    }

    #makeRow({ id, type, title, message, isNew }) {
      const disc = make("span", { class: "disc" }, icon(type));
      const text = make("p", {}, message ?? "");
      const button = make(
        "button",
        { class: `item${isNew ? " is-new" : ""}`, part: "item", type: "button", tabindex: "-1", "data-id": id },
        disc, make("b", {}, title ?? ""), make("time"), text, make("span", { class: "unseen" }),
      );
      button.addEventListener("click", () => this.#read(this.#items.get(id)));
      return make("li", {}, button);
    }

    #paintRow(row, item, words) {
      const button = row.firstChild;
      const isUnread = !item.readAt;
      const when = new Date(item.createdAt);
      const [time, mark] = [button.querySelector("time"), button.querySelector(".unseen")];
      button.classList.toggle("is-unread", isUnread);
      button.setAttribute("part", isUnread ? "item item-unread" : "item");
      time.dateTime = item.createdAt;
      time.title = when.toLocaleString(this.#lang());
      setText(time, ago(when, this.#lang()));
      setText(mark, isUnread ? words.unreadMark : "");
    }

    /** Below the bell, or above it where there is more room, and never beyond the edge of the window. */
    #place() {
      const { panel } = this.#ui;
      const box = this.#ui.bell.getBoundingClientRect();
      const [width, height] = [document.documentElement.clientWidth, window.innerHeight];
      const isBelow = height - box.bottom >= Math.min(420, box.top);
      const left = box.left + box.width / 2 > width / 2 ? box.right - panel.offsetWidth : box.left;
      panel.style.left = `${Math.max(8, Math.min(left, width - panel.offsetWidth - 8))}px`;
      panel.style.top = isBelow ? `${box.bottom + 8}px` : "auto";
      panel.style.bottom = isBelow ? "auto" : `${height - box.top + 8}px`;
      panel.style.maxHeight = `${Math.min(560, (isBelow ? height - box.bottom : box.top) - 16)}px`;
    }

    /** For who listens to the page. Several at once are counted, not read out. */
    #announce(item) {
      this.#announced.push(item);
      clearTimeout(this.#timers.announce);
      this.#timers.announce = setTimeout(() => {
        const items = this.#announced.splice(0);
        const words = WORDS[this.#lang()];
        if (!items.length) return;
        this.#ui.said.textContent = items.length === 1 ? words.arrived(items[0].title) : words.arrivedMany(items.length);
      }, 300);
    }
  }

  /** Text that has not changed is not touched: a screen reader would read it again. */
  function setText(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }

  customElements.define("bongsu-bell", Bell);
})();
