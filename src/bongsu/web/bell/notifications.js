// What the page knows of the member's notifications, and how each event and each act of the member changes it. No DOM in here.

/** What a member can do with one notification, and the call that does it. */
const ACTS = {
  read: (id) => ["POST", `api/notifications/${id}/read`],
  unread: (id) => ["POST", `api/notifications/${id}/unread`],
  archive: (id) => ["POST", `api/notifications/${id}/archive`],
  unarchive: (id) => ["POST", `api/notifications/${id}/unarchive`],
  delete: (id) => ["DELETE", `api/notifications/${id}`],
};

const now = () => new Date().toISOString();
/** What a row of the inbox adds to the number of unread ones. */
const unreadOf = (item) => (item && !item.readAt ? 1 : 0);

/** Some notifications by id, and where the next page of them begins; null if there is none. */
class List {
  items = new Map();
  next = null;

  get newestFirst() {
    return [...this.items.values()].sort((a, b) => (isAfter(a.id, b.id) ? -1 : 1));
  }

  /** Whether a notification of that id stands on one of the pages that we have. */
  covers(id) {
    return this.items.has(id) || this.next === null || !isAfter(this.next, id);
  }

  upTo(id) {
    return [...this.items.values()].filter((item) => !isAfter(item.id, id));
  }
}

class Notifications {
  inbox = new List();
  archive = new List();
  unread = 0;
  // Grows with each change: an answer of the server that was under way meanwhile may be older than it.
  changes = 0;
  // Ids that have left the inbox while this page is open: an answer that is under way may still have them.
  #gone = new Set();
  // By how much the next badge should differ; null: by anything. One that differs otherwise means that we have missed something.
  #expected = 0;

  // --- from the stream -------------------------------------------------------------------------------------------------

  /** False if it is not in the inbox any more. */
  arrive(item) {
    if (this.#gone.has(item.id)) return false;
    this.changes += 1;
    this.#expect(1);
    this.inbox.items.set(item.id, { ...item, readAt: null, isNew: true });
    return true;
  }

  /** It is in the inbox, and is so now. */
  update(item) {
    this.changes += 1;
    this.#gone.delete(item.id);
    this.archive.items.delete(item.id);
    if (!this.inbox.covers(item.id)) return this.#expectAnything();
    this.#expect(unreadOf(item) - unreadOf(this.inbox.items.get(item.id)));
    this.inbox.items.set(item.id, { ...item });
  }

  /** It is no longer in the inbox: withdrawn, archived or deleted. */
  remove(id) {
    this.changes += 1;
    this.#gone.add(id);
    if (!this.inbox.items.has(id)) return this.#expectAnything();
    this.#expect(-unreadOf(this.inbox.items.get(id)));
    this.inbox.items.delete(id);
  }

  readUpTo(id) {
    this.changes += 1;
    for (const item of this.inbox.upTo(id)) item.readAt ??= now();
    this.#expectAnything();
  }

  seenUpTo(id) {
    for (const item of this.inbox.upTo(id)) item.seenAt ??= now();
  }

  /** False if something was missed. */
  count(unread) {
    const isExpected = this.#expected === null || unread - this.unread === this.#expected;
    this.#expected = 0;
    this.setUnread(unread);
    return isExpected;
  }

  setUnread(unread) {
    this.unread = unread;
    if (unread === 0) for (const item of this.inbox.items.values()) item.readAt ??= now();
  }

  #expect(difference) {
    if (this.#expected !== null) this.#expected += difference;
  }

  #expectAnything() {
    this.#expected = null;
  }

  // --- from the inbox ----------------------------------------------------------------------------------------------------

  /** A page of a list: the newest instead of what we had when we asked (`had`, a set of ids), or over it, or the next one. */
  keep(list, page, had) {
    if (had) {
      const newest = page.items[0]?.id ?? "";
      // What came while the page was asked for is above it. So is what we had and has left the list.
      for (const id of list.items.keys()) if (had.has(id) || !newest || !isAfter(id, newest)) list.items.delete(id);
      list.next = page.next;
    }
    for (const item of page.items) if (list !== this.inbox || !this.#gone.has(item.id)) list.items.set(item.id, item);
    this.setUnread(page.unread);
  }

  /** Too much was missed to say what: only the inbox knows what is in it. */
  forget() {
    this.#gone.clear();
  }

  // --- what the member does: shown at once. Each answers how to take it back ---------------------------------------------

  act(name, id) {
    const before = { inbox: this.inbox.items.get(id), archive: this.archive.items.get(id), isGone: this.#gone.has(id) };
    const item = before.inbox ?? before.archive;
    this.changes += 1;
    this.archive.items.delete(id);
    this.inbox.items.delete(id);
    const isInInbox = ["read", "unread", "unarchive"].includes(name);
    if (isInInbox && this.inbox.covers(id)) {
      const readAt = name === "unread" ? null : (item.readAt ?? now());
      this.inbox.items.set(id, { ...item, readAt, archivedAt: null });
    }
    this.#setGone(id, !isInInbox);
    const added = unreadOf(this.inbox.items.get(id)) - unreadOf(before.inbox);
    this.unread += added;
    return () => {
      this.changes += 1;
      this.unread -= added;
      this.#setGone(id, before.isGone);
      this.#put(this.inbox, id, before.inbox);
      this.#put(this.archive, id, before.archive);
    };
  }

  readAll() {
    this.changes += 1;
    const unread = this.unread;
    const marked = [...this.inbox.items.values()].filter(unreadOf);
    this.setUnread(0);
    return () => {
      this.changes += 1;
      this.unread = unread;
      for (const item of marked) item.readAt = null;
    };
  }

  #put(list, id, item) {
    if (item) list.items.set(id, item);
    else list.items.delete(id);
  }

  #setGone(id, isGone) {
    if (isGone) this.#gone.add(id);
    else this.#gone.delete(id);
  }
}
