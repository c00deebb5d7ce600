// The element. What notifications say is only ever put in as text, and styles go in as a sheet: a page may forbid inline
// styles, inline scripts and HTML from strings, and the bell still rings.

const PAGE_SIZE = 20;
// An answer of the inbox that something has overtaken is asked for again, so often.
const OVERTAKEN = 3;
// What the menu of a row offers.
const OFFERED = {
  inbox: (item) => [item.readAt ? "unread" : "read", "archive", "delete"],
  archive: () => ["unarchive", "delete"],
};

class Bell extends HTMLElement {
  static observedAttributes = ["server", "token", "auth", "lang"];

  #getToken = null;
  #token = "";
  #server = null;
  #live = null;
  #known = new Notifications();
  // Which list is shown: inbox or archive.
  #view = "inbox";
  #isLoaded = false;
  #isArchiveLoaded = false;
  // Something was missed: the inbox is read again when it is shown.
  #isStale = false;
  #mistake = "";
  #announced = [];
  #timers = {};
  #menu = new Menu();
  #rows;
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
  get unread() { return this.#known.unread; }
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
    on(document, "visibilitychange", () => this.#seeSoon());
    for (const kind of ["resize", "scroll"]) {
      on(window, kind, () => {
        this.#menu.close();
        if (this.isOpen) placePanel(this.#ui);
      });
    }
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
    placePanel(this.#ui);
    this.#focusFirst();
    this.#timers.clock = setInterval(() => this.#paint(), 30_000);
    if (this.#isStale) this.#refresh();
    this.#see();
  }

  close() {
    if (!this.isOpen) return;
    const hadFocus = this.shadowRoot.activeElement !== null;
    clearInterval(this.#timers.clock);
    this.#menu.close();
    this.#view = "inbox";
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
    this.#menu.close();
    this.#known = new Notifications();
    this.#view = "inbox";
    this.#announced = [];
    this.#isLoaded = this.#isArchiveLoaded = this.#isStale = false;
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
    else if (kind === "updated") this.#update(data);
    else if (kind === "withdrawn") this.#withdraw(data.id);
    else if (kind === "read") this.#readUpTo(data.upTo);
    else if (kind === "seen") this.#known.seenUpTo(data.upTo);
    else if (kind === "badge") this.#setBadge(data.unread);
    else if (kind === "reset") this.#reset();
    else if (kind === "chat") this.#tell("chat", data);
  }

  #arrive(data) {
    if (!this.#known.arrive(data)) return;
    this.#ui.bell.classList.remove("rings");
    requestAnimationFrame(() => this.#ui.bell.classList.add("rings"));
    this.#announce(data);
    this.#paint();
    this.#seeSoon();
    this.#tell("notification", data);
  }

  #update(data) {
    this.#change(() => this.#known.update(data));
    this.#tell("updated", data);
  }

  /** It is no longer in the inbox. The number of unread ones follows in a badge. */
  #withdraw(id) {
    this.#announced = this.#announced.filter((one) => one.id !== id);
    this.#change(() => this.#known.remove(id));
    // It may be in the archive now, or not any more.
    if (this.#view === "archive") this.#refresh();
    this.#tell("withdrawn", { id });
  }

  #readUpTo(upTo) {
    this.#known.readUpTo(upTo);
    this.#paint();
    this.#tell("read", { upTo });
  }

  #reset() {
    this.#known.forget();
    this.#load(true).catch(() => (this.#isStale = true));
  }

  #setBadge(unread) {
    const before = this.#known.unread;
    const isExpected = this.#known.count(unread);
    this.#counted(before);
    if (isExpected) return;
    // Written to the inbox without a word on the stream.
    this.#isStale = true;
    if (this.isOpen) this.#refresh();
  }

  /** Shows the number of unread ones, and tells the page if it is another than before. */
  #counted(before) {
    this.#paint();
    if (this.#known.unread !== before) this.#tell("badge", { unread: this.#known.unread });
  }

  #sayState(state) {
    this.#paint();
    this.#tell("state", { state });
    if (state === "refused") this.#tell("unauthorized", {});
  }

  /** The newest page of the list: instead of what we have, or over it. */
  async #load(isAnew, view = "inbox") {
    const known = this.#known;
    const had = new Set(known[view].items.keys());
    const page = await this.#ask(view);
    if (known !== this.#known) return;
    const before = known.unread;
    if (view === "archive") {
      this.#isArchiveLoaded = true;
    } else {
      if (!this.#isLoaded) this.#live.cursor = page.items[0]?.id ?? "";
      this.#isLoaded = true;
      this.#isStale = false;
    }
    this.#change(() => known.keep(known[view], page, isAnew && had));
    this.#counted(before);
    this.#seeSoon();
  }

  async #ask(view, cursor = "") {
    const [server, known] = [this.#server, this.#known];
    const query = `limit=${PAGE_SIZE}${view === "archive" ? "&archived=true" : ""}${cursor && `&cursor=${cursor}`}`;
    for (let tries = 1; ; tries += 1) {
      const before = known.changes;
      const page = await server.call(`api/notifications?${query}`);
      if (known.changes === before || tries === OVERTAKEN) return page;
    }
  }

  #refresh() {
    clearTimeout(this.#timers.refresh);
    const again = () => {
      this.#load(false).catch(() => {});
      if (this.#view === "archive") this.#load(true, "archive").catch(() => {});
    };
    this.#timers.refresh = setTimeout(again, 100);
  }

  async #loadOlder() {
    const [known, list, count] = [this.#known, this.#list, this.#rows.count];
    await this.#try(async () => {
      const page = await this.#ask(this.#view, list.next);
      known.keep(list, page, false);
      list.next = page.next;
    });
    this.#rows.focus(count);
  }

  /** The list has been looked at. */
  #see() {
    clearTimeout(this.#timers.see);
    const isLookedAt = this.isOpen && this.#view === "inbox" && document.visibilityState === "visible";
    if (!isLookedAt || !this.#known.inbox.newestFirst.some((item) => !item.seenAt)) return;
    const newest = this.#known.inbox.newestFirst[0].id;
    const known = this.#known;
    // If it does not work, the next time will do.
    this.#server.call("api/notifications/seen", "POST").then(() => known.seenUpTo(newest), () => {});
  }

  #seeSoon() {
    clearTimeout(this.#timers.see);
    if (this.isOpen) this.#timers.see = setTimeout(() => this.#see(), 500);
  }

  // --- what the member does --------------------------------------------------------------------------------------------

  #choose(id) {
    const item = this.#list.items.get(id);
    if (this.#tell("select", item, true) && !item.readAt) this.#act("read", id);
  }

  /** Shown at once, and taken back if the server does not agree. */
  async #act(name, id) {
    const before = this.#known.unread;
    let undo;
    this.#change(() => (undo = this.#known.act(name, id)));
    this.#counted(before);
    await this.#try(async () => {
      await this.#call(...ACTS[name](id));
      this.#sayDone(name);
    }, undo);
  }

  async #readAll() {
    const before = this.#known.unread;
    const undo = this.#known.readAll();
    this.#counted(before);
    await this.#try(() => this.#call("POST", "api/notifications/read-all"), undo);
  }

  /** A call that changes something. Some answer how many are unread then. */
  async #call(method, path) {
    const known = this.#known;
    const changes = known.changes;
    const answer = await this.#server.call(path, method);
    // Another member's by now.
    if (known !== this.#known) return;
    const before = known.unread;
    // A change that the stream sent during the call may be newer than this answer; the badge that follows it has the count.
    if (answer && known.changes === changes) known.setUnread(answer.unread);
    // An answer of the inbox that was under way meanwhile may be older.
    known.changes += 1;
    this.#counted(before);
  }

  async #try(act, undo = () => {}) {
    const known = this.#known;
    this.#mistake = "";
    try {
      await act();
    } catch (error) {
      if (known !== this.#known) return;
      const before = known.unread;
      this.#mistake = "failed";
      this.#change(undo);
      this.#counted(before);
      this.#load(true).catch(() => (this.#isStale = true));
    }
    this.#paint();
  }

  async #show(view) {
    this.#view = view;
    this.#mistake = "";
    this.#menu.close();
    this.#paint();
    this.#focusFirst();
    if (view !== "archive") return;
    await this.#try(() => this.#load(true, "archive"));
    // Unless the member has gone elsewhere meanwhile.
    if (this.shadowRoot.activeElement === this.#ui.panel) this.#focusFirst();
  }

  #openMenu(id, button, opener) {
    const item = this.#list.items.get(id);
    const words = WORDS[this.#lang()];
    const entries = OFFERED[this.#view](item).map((name) => [name, words.acts[name], () => this.#act(name, id)]);
    this.#menu.open(id, button, opener, words.actions(item.title ?? ""), entries);
  }

  /** Tell the page. False if it has said no to what would come next. */
  #tell(name, detail, cancelable = false) {
    return this.dispatchEvent(new CustomEvent(`bongsu:${name}`, { detail, cancelable, bubbles: true, composed: true }));
  }

  // --- keys ------------------------------------------------------------------------------------------------------------

  #focusFirst() {
    if (this.#rows.count) this.#rows.focus(0);
    else this.#ui.panel.focus();
  }

  #pressed(event) {
    const id = this.#rows.focused;
    const place = id === null ? -1 : this.#rows.place(id);
    const isMenuKey = event.key === "ContextMenu" || (event.key === "F10" && event.shiftKey);
    const way = {
      Escape: () => this.close(),
      ArrowDown: () => (this.isOpen ? this.#rows.focus(place + 1) : this.open()),
      ArrowUp: () => this.isOpen && this.#rows.focus(place < 0 ? this.#rows.count - 1 : place - 1),
      ArrowRight: () => this.#rows.step(id, true),
      ArrowLeft: () => this.#rows.step(id, false),
      Home: () => this.isOpen && this.#rows.focus(0),
      End: () => this.isOpen && this.#rows.focus(this.#rows.count - 1),
      Menu: () => this.#rows.openMenu(id),
    }[isMenuKey ? "Menu" : event.key];
    if (!way || (event.key === "Escape" && !this.isOpen)) return;
    if (id === null && (isMenuKey || ["ArrowRight", "ArrowLeft"].includes(event.key))) return;
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
    const ui = buildNodes(this.#menu.node);
    this.#rows = new Rows(ui.list, {
      choose: (id) => this.#choose(id),
      menu: (id, button, opener) => this.#openMenu(id, button, opener),
    });
    root.append(ui.bell, ui.panel, ui.said);
    ui.bell.addEventListener("click", () => (this.isOpen ? this.close() : this.open()));
    ui.close.addEventListener("click", () => this.close());
    ui.readAll.addEventListener("click", () => this.#readAll());
    ui.older.addEventListener("click", () => this.#loadOlder());
    ui.archive.addEventListener("click", () => this.#show("archive"));
    ui.back.addEventListener("click", () => this.#show("inbox"));
    ui.stateButton.addEventListener("click", () => this.reconnect());
    root.addEventListener("keydown", (event) => this.#pressed(event));
    // The key that opens our menu opens the browser's too, in some.
    root.addEventListener("contextmenu", (event) => this.#menu.id !== null && event.preventDefault());
    root.addEventListener("pointerdown", (event) => event.composedPath().includes(this.#menu.node) || this.#menu.close());
    ui.list.parentNode.addEventListener("scroll", () => this.#menu.close());
    // Whoever leaves by Tab has finished; a click is looked at where it lands.
    ui.panel.addEventListener("focusout", ({ relatedTarget }) => relatedTarget && !root.contains(relatedTarget) && this.close());
    return ui;
  }

  #lang() {
    const lang = this.closest("[lang]")?.lang || navigator.language;
    return lang.toLowerCase().startsWith("ko") ? "ko" : "en";
  }

  #paint() {
    const words = WORDS[this.#lang()];
    const state = this.state;
    const isInterrupted = !["live", "connecting"].includes(state);
    const unread = this.#known.unread;
    // For the page's own styles: bongsu-bell[state="waiting"] …
    this.setAttribute("state", state);
    paintBell(this.#ui, words, { unread, state, isInterrupted, isOpen: this.isOpen });
    if (!this.isOpen) return;
    const isArchive = this.#view === "archive";
    paintPanel(this.#ui, words, {
      isArchive,
      isLoaded: isArchive ? this.#isArchiveLoaded : this.#isLoaded,
      isEmpty: this.#list.items.size === 0,
      hasOlder: this.#list.next !== null,
      unread,
      state: isInterrupted ? state : this.#mistake,
    });
    this.#rows.paint(this.#list.newestFirst, words, this.#lang());
  }

  /** The list that is shown. */
  get #list() {
    return this.#known[this.#view];
  }

  /** Changes what is known and shows it. If the row that has the focus leaves, the focus goes to the one that takes its place;
   * in an empty list it goes to the panel, so that keys still work. */
  #change(act) {
    const id = this.#menu.id ?? this.#rows.focused;
    const place = id === null ? -1 : this.#rows.place(id);
    act();
    if (this.#menu.id !== null && !this.#list.items.has(id)) this.#menu.close();
    this.#paint();
    if (!this.isOpen || id === null || this.#rows.has(id)) return;
    if (this.#rows.count) this.#rows.focus(place);
    else this.#ui.panel.focus();
  }

  #sayDone(name) {
    const text = WORDS[this.#lang()].done[name];
    if (text) this.#ui.said.textContent = text;
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

customElements.define("bongsu-bell", Bell);
