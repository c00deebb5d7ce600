/* What the chat looks like: the list of rooms, the open room, and its messages. Texts of members are only ever text nodes. */

// One member's messages within this time stand together under one name.
const TOGETHER_MS = 5 * 60_000;
// So near to the end, a reader is at the end, and goes along with what is new.
const NEAR_PX = 48;

export const at = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export function icon(name) {
  const SVG = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `/demo/chat.svg#${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/** A button with a picture. What it does is its name, and is shown when it is pointed at. */
export function tool(name, label, act) {
  const button = make("button", { type: "button", class: "tool", "aria-label": label, title: label, "data-act": act }, icon(name));
  return button;
}

export class View {
  #names;
  #texts;
  #lang;
  #me;
  #rows = new Map();
  #wasAtEnd = true;

  constructor(names) {
    this.#names = names;
    // A smaller window, or the list of members above, does not hide the newest message.
    new ResizeObserver(() => this.#wasAtEnd && this.scrollToEnd()).observe(at("chat-scroll"));
    at("chat-scroll").addEventListener("scroll", () => (this.#wasAtEnd = this.isAtEnd));
  }

  become(me, texts, lang) {
    this.#me = me;
    this.#texts = texts;
    this.#lang = lang;
    at("chat-log").replaceChildren();
    this.#rows.clear();
    for (const element of document.querySelectorAll("[data-chat]")) element.textContent = texts[element.dataset.chat];
    for (const element of document.querySelectorAll("[data-chat-label]")) {
      element.setAttribute("aria-label", texts[element.dataset.chatLabel]);
      element.title = texts[element.dataset.chatLabel];
    }
    at("chat-text").placeholder = texts.placeholder;
    at("chat-text").setAttribute("aria-label", texts.placeholder);
  }

  name(memberId) {
    return this.#names[memberId] ?? memberId ?? this.#texts.gone;
  }

  // --- the list of rooms ----------------------------------------------------------------------------------------------------

  showState(state) {
    const text = this.#texts.states[state] ?? "";
    at("chat").dataset.state = state;
    at("chat-state").hidden = !text;
    setText(at("chat-state-text"), text);
    at("chat-here").hidden = state !== "replaced" && state !== "refused";
  }

  showRooms(rooms, open) {
    const sum = rooms.filter((room) => !room.isMuted).reduce((count, room) => count + room.unread, 0);
    at("chat-link").setAttribute("aria-label", this.#texts.open(sum));
    at("chat-link").title = this.#texts.open(sum);
    at("chat-badge").hidden = !sum;
    setText(at("chat-badge"), sum > 99 ? "99+" : String(sum));
    const list = at("chat-rooms");
    arrange(
      list,
      rooms.map((room) => this.#roomItem(list, room, room === open)),
    );
    at("chat-no-rooms").hidden = rooms.length > 0;
  }

  #roomItem(list, room, isOpen) {
    const item = [...list.children].find((one) => one.dataset.room === room.id) ?? this.#newRoomItem(room);
    const [button, line] = [item.firstElementChild, item.querySelector(".last")];
    button.setAttribute("aria-current", String(isOpen));
    button.classList.toggle("is-muted", room.isMuted);
    setText(item.querySelector("b"), room.name);
    setText(item.querySelector("time"), room.newest ? this.#time(room.newest.sentAt) : "");
    setText(line, this.#lastLine(room));
    const badge = item.querySelector(".count");
    badge.hidden = !room.unread;
    setText(badge, room.unread > 99 ? "99+" : String(room.unread));
    badge.setAttribute("aria-label", this.#texts.unread(room.unread));
    item.querySelector(".mute-mark").toggleAttribute("hidden", !room.isMuted);
    return item;
  }

  #newRoomItem(room) {
    const head = make("span", { class: "head" }, make("b"), make("span", { class: "mute-mark", title: this.#texts.muted }, icon("bell-off")), make("time"));
    const line = make("span", { class: "line" }, make("span", { class: "last" }), make("span", { class: "count" }));
    return make("li", { "data-room": room.id }, make("button", { type: "button", "data-act": "select" }, avatar(room.id, room.name), head, line));
  }

  #lastLine(room) {
    const typing = this.#typingText(room);
    if (typing) return typing;
    const last = room.newest;
    if (!last) return "";
    const text = last.message ?? this.#texts.deleted;
    return `${last.senderId === this.#me ? this.#texts.you : this.name(last.senderId)}: ${text}`;
  }

  // --- the open room --------------------------------------------------------------------------------------------------------

  /** Everything about a room; null: none is open. */
  showRoom(room) {
    at("chat").classList.toggle("has-room", room !== null);
    at("chat-room").hidden = room === null;
    if (room === null) return;
    setText(at("chat-name"), room.name);
    const members = room.members && [...room.members.values()];
    at("chat-who").hidden = members === null;
    if (members) this.#showMembers(members);
    const mute = at("chat-mute");
    const label = room.isMuted ? this.#texts.unmute : this.#texts.mute;
    mute.setAttribute("aria-pressed", String(room.isMuted));
    mute.setAttribute("aria-label", label);
    mute.title = label;
    mute.replaceChildren(icon(room.isMuted ? "bell-off" : "bell"));
    this.showTyping(room);
    this.#showMessages(room);
  }

  #showMembers(members) {
    const online = members.filter((one) => one.online).length;
    setText(at("chat-who-text"), this.#texts.members(members.length, online));
    const sorted = [...members].sort((one, other) => Number(other.online) - Number(one.online));
    const shown = sorted.map(({ memberId, online: isOnline }) => {
      const state = isOnline ? this.#texts.online : this.#texts.offline;
      const dot = make("span", { class: `dot${isOnline ? " is-online" : ""}`, role: "img", "aria-label": state, title: state });
      const you = memberId === this.#me ? ` (${this.#texts.you})` : "";
      return make("li", { "data-member": memberId }, avatar(memberId, this.name(memberId)), `${this.name(memberId)}${you}`, dot);
    });
    at("chat-members").replaceChildren(...shown);
  }

  showTyping(room) {
    setText(at("chat-typing"), this.#typingText(room));
  }

  #typingText(room) {
    const names = room.typing.map((memberId) => this.name(memberId));
    return names.length ? this.#texts.typing(names) : "";
  }

  // --- messages -------------------------------------------------------------------------------------------------------------

  #showMessages(room) {
    const scroll = at("chat-scroll");
    const isAtEnd = this.isAtEnd;
    const fromEnd = scroll.scrollHeight - scroll.scrollTop;
    const wasOldest = at("chat-log").querySelector("[data-seq]")?.dataset.seq;
    at("chat-older").hidden = !room.hasOlder;
    at("chat-empty").hidden = room.seq === null || room.messages.length + room.pending.length > 0;
    const rows = this.#describe(room);
    const kept = new Map();
    for (const row of rows) {
      const sign = JSON.stringify(row);
      const before = this.#rows.get(row.key);
      // A row that is as it was stays the same element: who has the focus keeps it, and nothing is read out again.
      kept.set(row.key, before?.sign === sign ? before : { sign, node: this.#row(row) });
    }
    this.#rows = kept;
    arrange(
      at("chat-log"),
      [...kept.values()].map(({ node }) => node),
    );
    const isGrownAbove = wasOldest && Number(wasOldest) > Number(at("chat-log").querySelector("[data-seq]")?.dataset.seq);
    if (isGrownAbove) scroll.scrollTop = scroll.scrollHeight - fromEnd;
    else if (isAtEnd) this.scrollToEnd();
    at("chat-newest").hidden = this.isAtEnd || !room.unread;
  }

  get isAtEnd() {
    const scroll = at("chat-scroll");
    return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_PX;
  }

  scrollToEnd() {
    this.#wasAtEnd = true;
    at("chat-scroll").scrollTop = at("chat-scroll").scrollHeight;
  }

  /** Another room: nothing of the last one stays. */
  clear() {
    this.#rows.clear();
    at("chat-log").replaceChildren();
    at("chat-members").hidden = true;
    at("chat-who").setAttribute("aria-expanded", "false");
  }

  /** Everything a row shows, as data: days, the line above what is new, messages, and own ones on their way. */
  #describe(room) {
    const rows = [];
    let last = null;
    let hasLine = room.openedAt === null;
    const add = (message, row) => {
      const day = new Date(message.sentAt).toDateString();
      if (day !== (last && new Date(last.sentAt).toDateString())) {
        rows.push({ kind: "day", key: `day ${day}`, at: message.sentAt });
        last = null;
      }
      if (!hasLine && message.seq > room.openedAt && message.senderId !== this.#me) {
        rows.push({ kind: "line", key: "line" });
        [hasLine, last] = [true, null];
      }
      const isLater = last?.senderId === message.senderId && new Date(message.sentAt) - new Date(last.sentAt) < TOGETHER_MS;
      rows.push({ ...row, isFirst: !isLater, isOwn: message.senderId === this.#me, time: message.sentAt });
      last = message;
    };
    for (const message of room.messages) {
      const { seq, senderId, editedAt = null } = message;
      const row = { kind: "message", key: `seq ${seq}`, seq, senderId, text: message.message, isEdited: editedAt !== null };
      add(message, { ...row, notRead: room.notReadBy(message) });
    }
    for (const { id, text, at: sentAt, problem, isWaiting } of room.pending) {
      add({ senderId: this.#me, sentAt }, { kind: "pending", key: `id ${id}`, id, text, problem, isWaiting, senderId: this.#me });
    }
    return rows;
  }

  #row(row) {
    if (row.kind === "day") {
      const day = new Intl.DateTimeFormat(this.#lang, { dateStyle: "full" }).format(new Date(row.at));
      return make("li", { class: "day" }, make("span", {}, day));
    }
    if (row.kind === "line") return make("li", { class: "new-line" }, make("span", {}, this.#texts.newLine));
    const kinds = [row.isOwn && "is-own", row.isFirst && "is-first", row.kind === "pending" && "is-pending", row.problem && "is-refused"];
    const node = make("li", { class: `message ${kinds.filter(Boolean).join(" ")}`, "data-seq": row.seq ?? null, "data-id": row.id ?? null });
    if (row.isFirst && !row.isOwn) node.append(avatar(row.senderId, this.name(row.senderId)), make("b", {}, this.name(row.senderId)));
    const isDeleted = row.text === null;
    const bubble = make("p", { class: isDeleted ? "bubble is-deleted" : "bubble" }, row.text ?? this.#texts.deleted);
    node.append(make("div", { class: "row" }, bubble, this.#beside(row)));
    return node;
  }

  /** Beside a bubble: when, who has not read it, and what its sender can do. */
  #beside(row) {
    const beside = make("span", { class: "beside" });
    if (row.kind === "pending") {
      beside.append(make("small", {}, row.problem || (row.isWaiting ? this.#texts.waiting : this.#texts.sending)));
      if (row.problem) beside.append(tool("again", this.#texts.again, "again"), tool("bin", this.#texts.discard, "discard"));
      return beside;
    }
    if (row.isOwn && row.text !== null) beside.append(tool("pen", this.#texts.edit, "edit"), tool("bin", this.#texts.remove, "remove"));
    const label = this.#texts.notRead(row.notRead);
    if (row.notRead) beside.append(make("i", { title: label, "aria-label": label, role: "img" }, String(row.notRead)));
    if (row.isEdited && row.text !== null) beside.append(make("small", {}, this.#texts.edited));
    beside.append(make("time", { datetime: row.time }, this.#time(row.time)));
    return beside;
  }

  #time(when) {
    const date = new Date(when);
    const isToday = date.toDateString() === new Date().toDateString();
    return new Intl.DateTimeFormat(this.#lang, isToday ? { timeStyle: "short" } : { month: "short", day: "numeric" }).format(date);
  }
}

/** A disc with the first letter of a name, in a colour that is always the same for the same id. */
function avatar(id, name) {
  const node = make("span", { class: "avatar", "aria-hidden": "true" }, [...name][0] ?? "?");
  let hue = 7;
  for (const letter of id ?? "") hue = (hue * 31 + letter.codePointAt(0)) % 360;
  node.style.setProperty("--hue", String(hue));
  return node;
}

/** Make these the children, in this order, moving as few as possible. */
function arrange(parent, nodes) {
  nodes.forEach((node, place) => parent.children[place] !== node && parent.insertBefore(node, parent.children[place] ?? null));
  while (parent.children.length > nodes.length) parent.lastElementChild.remove();
}

/** Text that has not changed is not touched: a screen reader would read it again. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
