/* The chat: rooms of the chosen member, in order and up to date, over the WebSocket; messages are sent again until they are
 * acknowledged, with the same clientMessageId, so that each is stored once. */

import { Connection } from "./chat-connection.js";
import { Room } from "./chat-room.js";
import { CHAT_TEXTS } from "./chat-texts.js";
import { at, View } from "./chat-view.js";

// Messages loaded at a time, and rooms of which the newest are loaded before they are opened.
const PAGE = 30;
const ROOMS_LOADED = 20;
const TYPING_MS = 2_000;
// No frame announces who comes and goes: while a room is open, who is online is read at this interval.
const WHO_MS = 10_000;
const AGAIN_MS = 2_000;
const NARROW = matchMedia("(max-width: 720px)");

export class Chat {
  #view;
  #connection = null;
  #me = null;
  #texts = null;
  #rooms = new Map();
  #open = null;
  #editing = null;
  #typedAt = 0;
  #isSeen = false;
  #readSent = new Map();
  #drawing = 0;
  #reloading = 0;
  #isTyping = false;

  constructor(names) {
    this.#view = new View(names);
    this.#listen();
    setInterval(() => this.#readMembers(), WHO_MS);
    setInterval(() => this.#forgetTyping(), 1_000);
  }

  /** Be this member from now on. */
  become(visitor, getToken) {
    this.#connection?.close();
    this.#me = visitor.id;
    this.#texts = CHAT_TEXTS[visitor.locale];
    this.#rooms.clear();
    this.#readSent.clear();
    this.#open = null;
    this.#stopEditing();
    at("chat-text").value = "";
    this.#view.become(this.#me, this.#texts, visitor.locale);
    const connection = new Connection(
      getToken,
      (frame) => connection === this.#connection && this.#take(frame),
      (state) => connection === this.#connection && this.#show(state),
    );
    this.#connection = connection;
    connection.open();
    this.#draw();
  }

  // --- what the server sends ------------------------------------------------------------------------------------------------

  #take(frame) {
    if (frame.op === "ready") return void this.#catchUp();
    const room = this.#rooms.get(frame.roomId);
    const isMine = frame.memberId === this.#me;
    if ((frame.op === "joined" && isMine) || (room === undefined && frame.op === "message")) this.#reloadSoon();
    if (frame.op === "left" && isMine) this.#forget(frame.roomId);
    if (room === undefined) return;
    if (frame.op === "message") {
      if (room.isBehind(frame)) this.#resume(room);
      else room.take(frame);
    } else if (frame.op === "edited" || frame.op === "deleted") room.change(frame);
    else if (frame.op === "ack") room.acknowledge(frame);
    else if (frame.op === "resumed") room.isResuming = false;
    else if (frame.op === "read") room.read(frame.memberId, frame.seq);
    else if (frame.op === "typing") room.typed(frame.memberId);
    else if (frame.op === "joined" || frame.op === "left") this.#readMembers();
    else if (frame.op === "error" && frame.clientMessageId) this.#refused(room, frame);
    this.#draw();
  }

  /** After `ready`: what happened since each room's last seq, and the own messages that were not acknowledged. */
  async #catchUp() {
    for (const room of this.#rooms.values()) {
      if (room.seq !== null) this.#resume(room);
      room.pending.forEach((pending) => this.#send(room, pending));
    }
    this.#readSent.clear();
    await this.#load();
    this.#readMembers();
  }

  /** The list of rooms, and of new ones the newest messages. */
  async #load() {
    const connection = this.#connection;
    const found = await connection.call("GET", "").catch(() => null);
    if (found === null) return this.#reloadSoon(AGAIN_MS);
    if (connection !== this.#connection) return;
    for (const item of found.items) {
      const room = this.#rooms.get(item.roomId) ?? new Room(item.roomId, this.#me);
      this.#rooms.set(item.roomId, room);
      room.describe(item);
    }
    const listed = new Set(found.items.map((item) => item.roomId));
    for (const roomId of this.#rooms.keys()) if (!listed.has(roomId)) this.#forget(roomId);
    await Promise.all(this.#sorted.slice(0, ROOMS_LOADED).map((room) => this.#loadMessages(room)));
    if (connection !== this.#connection) return;
    if (this.#open === null && !NARROW.matches && this.#rooms.size) this.#select(this.#sorted[0].id);
    this.#draw();
  }

  async #loadMessages(room) {
    if (room.seq !== null) return;
    const connection = this.#connection;
    const found = await connection.call("GET", `/${room.id}/messages?limit=${PAGE}`).catch(() => null);
    if (connection !== this.#connection) return;
    if (found === null) return this.#reloadSoon(AGAIN_MS);
    room.load(found.items);
    // What was sent between the page's reading and now.
    this.#resume(room);
  }

  #reloadSoon(wait = 0) {
    clearTimeout(this.#reloading);
    const connection = this.#connection;
    this.#reloading = setTimeout(() => connection === this.#connection && connection.isLive && this.#load(), wait);
  }

  #resume(room) {
    room.isResuming = this.#connection.send({ op: "resume", roomId: room.id, afterSeq: room.seq });
  }

  #forget(roomId) {
    if (this.#open?.id === roomId) this.#close();
    this.#rooms.delete(roomId);
    this.#draw();
  }

  // --- what the member does -------------------------------------------------------------------------------------------------

  #select(roomId) {
    const room = this.#rooms.get(roomId);
    if (room === undefined || room === this.#open) return;
    this.#stopEditing();
    this.#open = room;
    room.openedAt = room.unread ? room.readSeq : null;
    this.#view.clear();
    this.#view.showRoom(room);
    this.#view.scrollToEnd();
    this.#loadMessages(room).then(() => this.#draw());
    this.#readMembers();
    this.#draw();
  }

  #close() {
    this.#stopEditing();
    this.#open = null;
    this.#draw();
  }

  #submit() {
    const text = at("chat-text").value.trim();
    if (!text || this.#open === null) return;
    if (this.#editing !== null) {
      this.#call("PATCH", `/messages/${this.#editing}`, { message: text });
      return this.#stopEditing();
    }
    at("chat-text").value = "";
    this.#fit();
    this.#open.openedAt = null;
    this.#send(this.#open, this.#open.say(text));
    this.#typedAt = 0;
    this.#view.showRoom(this.#open);
    this.#view.scrollToEnd();
  }

  #send(room, pending) {
    pending.problem = "";
    const frame = { op: "send", roomId: room.id, clientMessageId: pending.id, message: pending.text };
    pending.isWaiting = !this.#connection.send(frame);
    this.#draw();
  }

  /** An error about a send. What may be stored later is sent again, with the same id. */
  #refused(room, { code, detail, clientMessageId, retryAfter }) {
    const pending = room.pending.find(({ id }) => id === clientMessageId);
    if (pending === undefined) return;
    if (code === "RATE_LIMITED" || code === "UNAVAILABLE") {
      setTimeout(() => room.pending.includes(pending) && this.#send(room, pending), (retryAfter ?? 0) * 1_000 || AGAIN_MS);
    } else pending.problem = `${this.#texts.failed}: ${detail}`;
  }

  /** A call about the open room. */
  async #call(method, path, body) {
    const room = this.#open;
    try {
      return await this.#connection.call(method, `/${room.id}${path}`, body);
    } catch {
      this.#tell(this.#texts.problem);
      return null;
    }
  }

  async #older() {
    const room = this.#open;
    const found = await this.#call("GET", `/messages?beforeSeq=${room.messages[0].seq}&limit=${PAGE}`);
    if (found !== null) room.prepend(found.items);
    this.#draw();
  }

  async #toggleMute() {
    const room = this.#open;
    const isMuted = !room.isMuted;
    await this.#call("POST", isMuted ? "/mute" : "/unmute");
    // What the server has now, whichever tab has changed it.
    await this.#load();
  }

  async #readMembers() {
    const [room, connection] = [this.#open, this.#connection];
    if (room === null || document.visibilityState !== "visible" || !connection.isLive) return;
    const found = await connection.call("GET", `/${room.id}/members?limit=100`).catch(() => null);
    if (found === null || room !== this.#open) return;
    room.members = found.next === null ? new Map(found.items.map((one) => [one.memberId, one])) : null;
    this.#draw();
  }

  #edit(seq) {
    const message = this.#open.messages.find((one) => one.seq === seq);
    this.#editing = seq;
    at("chat-text").value = message.message;
    this.#showComposer();
    at("chat-text").focus();
  }

  #stopEditing() {
    if (this.#editing !== null) at("chat-text").value = "";
    this.#editing = null;
    if (this.#texts) this.#showComposer();
  }

  #showComposer() {
    at("chat-editing").hidden = this.#editing === null;
    const label = this.#editing === null ? this.#texts.send : this.#texts.save;
    at("chat-send").setAttribute("aria-label", label);
    at("chat-send").title = label;
    at("chat-send").querySelector("use").setAttribute("href", `/demo/chat.svg#${this.#editing === null ? "send" : "save"}`);
    this.#fit();
  }

  /** As high as its text, up to what the style allows. */
  #fit() {
    at("chat-text").style.height = "auto";
    const { scrollHeight } = at("chat-text");
    if (scrollHeight) at("chat-text").style.height = `${scrollHeight + 2}px`;
  }

  // --- what is shown --------------------------------------------------------------------------------------------------------

  get #sorted() {
    return [...this.#rooms.values()].sort((one, other) => (one.lastSentAt < other.lastSentAt ? 1 : -1));
  }

  #show(state) {
    this.#view.showState(state);
    for (const room of this.#rooms.values()) {
      room.isResuming = false;
      for (const pending of room.pending) pending.isWaiting = state !== "live";
    }
    this.#draw();
  }

  /** Once for all that happened since the last frame, and also where no frame is painted: behind another tab. */
  #draw() {
    this.#drawing ||= setTimeout(() => {
      this.#drawing = 0;
      this.#view.showRooms(this.#sorted, this.#open);
      this.#view.showRoom(this.#open);
      this.#markRead();
    });
  }

  /** What the member sees, they have read. */
  #markRead() {
    const room = this.#open;
    if (room?.seq == null || !this.#isSeen || document.visibilityState !== "visible" || !this.#view.isAtEnd) return;
    if (room.seq <= Math.max(room.readSeq, this.#readSent.get(room) ?? 0)) return;
    if (this.#connection.send({ op: "read", roomId: room.id, seq: room.seq })) this.#readSent.set(room, room.seq);
  }

  /** Who has stopped typing says nothing more. */
  #forgetTyping() {
    const isTyping = [...this.#rooms.values()].some((room) => room.typing.length);
    if (isTyping || this.#isTyping) this.#draw();
    this.#isTyping = isTyping;
  }

  #tell(text) {
    at("chat-problem").textContent = text;
    at("chat-problem").hidden = false;
    setTimeout(() => (at("chat-problem").hidden = true), 5_000);
  }

  #listen() {
    at("chat").addEventListener("click", (event) => {
      const button = event.target.closest("[data-act]");
      if (button) this.#act(button.dataset.act, button);
    });
    at("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    at("chat-text").addEventListener("keydown", (event) => this.#press(event));
    at("chat-text").addEventListener("input", () => {
      this.#fit();
      if (this.#editing !== null || this.#open === null || Date.now() - this.#typedAt < TYPING_MS) return;
      this.#typedAt = Date.now();
      this.#connection.send({ op: "typing", roomId: this.#open.id });
    });
    at("chat-scroll").addEventListener("scroll", () => this.#view.isAtEnd && this.#draw());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && (this.#readMembers(), this.#draw()));
    const observer = new IntersectionObserver(([entry]) => {
      this.#isSeen = entry.isIntersecting;
      this.#draw();
    });
    observer.observe(at("chat-form"));
  }

  #press(event) {
    // Enter that ends the composition of a syllable is not one that sends.
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.#submit();
    } else if (event.key === "Escape" && this.#editing !== null) this.#stopEditing();
    else if (event.key === "ArrowUp" && !at("chat-text").value) {
      const own = this.#open.messages.findLast(({ senderId, message }) => senderId === this.#me && message !== null);
      if (own) event.preventDefault(), this.#edit(own.seq);
    }
  }

  #act(act, button) {
    const { seq, id } = button.closest(".message")?.dataset ?? {};
    const pending = id && this.#open.pending.find((one) => one.id === id);
    if (act === "select") {
      this.#select(button.closest("[data-room]").dataset.room);
      at("chat-text").focus();
    } else if (act === "back") this.#close();
    else if (act === "here") this.#connection.open();
    else if (act === "mute") this.#toggleMute();
    else if (act === "members") {
      const isAtEnd = this.#view.isAtEnd;
      at("chat-members").hidden = !at("chat-members").hidden;
      if (isAtEnd) this.#view.scrollToEnd();
      at("chat-who").setAttribute("aria-expanded", String(!at("chat-members").hidden));
      this.#readMembers();
    } else if (act === "older") this.#older();
    else if (act === "newest") this.#view.scrollToEnd();
    else if (act === "edit") this.#edit(Number(seq));
    else if (act === "cancel") this.#stopEditing();
    else if (act === "remove") this.#call("DELETE", `/messages/${seq}`);
    else if (act === "again") this.#send(this.#open, pending);
    else if (act === "discard") this.#open.forget(id), this.#draw();
  }
}
