/* One room as this page knows it. It knows neither the page nor the socket: frames and answers go in. */

// The other page sends `typing` every two seconds while its member types.
const TYPING_MS = 3_000;

export class Room {
  name = "";
  isMuted = false;
  lastSentAt = "";
  firstSeq = 1;
  // In order, without holes, up to `seq`. Before they are loaded there is no `seq`.
  messages = [];
  seq = null;
  isResuming = false;
  // Own messages that the server has not acknowledged: {id, text, at, problem}.
  pending = [];
  // By member: {memberId, readSeq, online}. null if it is not loaded, or the room has more members than one page.
  members = null;
  // The read mark when the room was opened: where the line "new messages" is.
  openedAt = null;
  #me;
  #typing = new Map();
  #readSeq = 0;
  // How many were unread when the room had so many messages. Later ones are counted here.
  #unread = 0;
  #countedTo = 0;

  constructor(id, me) {
    this.id = id;
    this.#me = me;
  }

  /** An item of `GET /api/chat/rooms`. */
  describe(item) {
    this.name = item.name;
    this.isMuted = item.muted;
    this.firstSeq = item.firstSeq;
    this.lastSentAt = item.lastSentAt;
    this.#unread = item.unread;
    this.#countedTo = item.lastSeq;
    this.#readSeq = Math.max(this.#readSeq, item.readSeq);
  }

  get unread() {
    return this.#unread + this.messages.filter(({ seq, senderId }) => seq > this.#countedTo && senderId !== this.#me).length;
  }

  get readSeq() {
    return this.#readSeq;
  }

  get hasOlder() {
    return this.messages.length > 0 && this.messages[0].seq > this.firstSeq;
  }

  get newest() {
    return this.messages.at(-1);
  }

  /** The newest messages, when there are none yet. */
  load(messages) {
    if (this.seq !== null) return;
    this.messages = messages;
    this.seq = messages.at(-1)?.seq ?? this.#countedTo;
    messages.forEach((message) => this.#forgetPending(message));
  }

  /** Messages before the oldest here. */
  prepend(messages) {
    const first = this.messages[0]?.seq ?? Infinity;
    this.messages.unshift(...messages.filter(({ seq }) => seq < first));
  }

  /** A message is taken if it is the next. Any other came before a resume was begun and is sent again. */
  take(frame) {
    if (this.seq === null || frame.seq !== this.seq + 1) return false;
    this.seq = frame.seq;
    this.messages.push(frame);
    this.lastSentAt = frame.sentAt;
    this.#typing.delete(frame.senderId);
    this.#forgetPending(frame);
    return true;
  }

  /** Whether a message shows that others are missing, which nothing is on the way to bring. */
  isBehind(frame) {
    return this.seq !== null && frame.seq > this.seq + 1 && !this.isResuming;
  }

  change({ seq, op, message, editedAt, deletedAt }) {
    const found = this.messages.find((one) => one.seq === seq);
    if (found === undefined) return;
    if (op === "deleted") Object.assign(found, { message: null, deletedAt });
    else Object.assign(found, { message, editedAt });
  }

  /** The read mark of a member has moved. */
  read(memberId, seq) {
    const member = this.members?.get(memberId);
    if (member) member.readSeq = Math.max(member.readSeq, seq);
    if (memberId !== this.#me || seq <= this.#readSeq) return;
    this.#readSeq = seq;
    if (seq >= this.#countedTo) {
      this.#countedTo = seq;
      this.#unread = 0;
    } else if (this.messages[0]?.seq <= seq + 1) {
      const isCounted = (one) => one.seq > seq && one.seq <= this.#countedTo && one.senderId !== this.#me;
      this.#unread = this.messages.filter(isCounted).length;
    }
  }

  /** How many members have not read a message; the sender has. 0 if that is not known. */
  notReadBy({ seq, senderId }) {
    if (this.members === null) return 0;
    return [...this.members.values()].filter((one) => one.memberId !== senderId && one.readSeq < seq).length;
  }

  // --- own messages that are on their way ---------------------------------------------------------------------------------

  say(text) {
    const pending = { id: newId(), text, at: new Date().toISOString(), problem: "" };
    this.pending.push(pending);
    return pending;
  }

  /** The answer to a send. The message itself comes too, unless it is here already. */
  acknowledge({ clientMessageId, seq }) {
    if (this.seq !== null && seq <= this.seq) this.forget(clientMessageId);
  }

  forget(id) {
    this.pending = this.pending.filter((one) => one.id !== id);
  }

  #forgetPending({ senderId, clientMessageId }) {
    if (senderId === this.#me) this.forget(clientMessageId);
  }

  // --- who types ----------------------------------------------------------------------------------------------------------

  typed(memberId) {
    this.#typing.set(memberId, Date.now() + TYPING_MS);
  }

  get typing() {
    for (const [memberId, until] of this.#typing) if (until < Date.now()) this.#typing.delete(memberId);
    return [...this.#typing.keys()];
  }
}

/** A UUID. `crypto.randomUUID` is there on pages of localhost and of https alone, and the demo may be neither. */
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 15) | 64;
  bytes[8] = (bytes[8] & 63) | 128;
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
