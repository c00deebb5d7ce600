// The rows of the list.

/** Rows stay what they are, so that focus stays where it is; new ones go in between. */
class Rows {
  #list;
  #rows = new Map();
  #on;

  constructor(list, on) {
    this.#list = list;
    this.#on = on;
  }

  get #buttons() {
    return [...this.#list.querySelectorAll(".item")];
  }

  get count() {
    return this.#rows.size;
  }

  has(id) {
    return this.#rows.has(id);
  }

  /** Where a row stands; -1 if it is not there. */
  place(id) {
    return [...this.#list.children].indexOf(this.#rows.get(id));
  }

  /** The id of the row that has the focus, in whichever part. */
  get focused() {
    return this.#list.getRootNode().activeElement?.closest("li")?.dataset.id ?? null;
  }

  /** One of the rows is in the way of the Tab key, and the arrows lead to the others. */
  focus(place) {
    const buttons = this.#buttons;
    const chosen = buttons[Math.max(0, Math.min(place, buttons.length - 1))];
    if (!chosen) return;
    this.#take(chosen);
    chosen.focus();
  }

  /** From a row to the button of its menu, and back. */
  step(id, isToMenu) {
    this.#rows.get(id)?.children[isToMenu ? 1 : 0].focus();
  }

  openMenu(id) {
    const [button, more] = this.#rows.get(id).children;
    this.#on.menu(id, more, this.#list.getRootNode().activeElement === more ? more : button);
  }

  paint(items, words, lang) {
    const ids = new Set(items.map((item) => item.id));
    for (const [id, row] of this.#rows) {
      if (ids.has(id)) continue;
      row.remove();
      this.#rows.delete(id);
    }
    items.forEach((item, place) => {
      let row = this.#rows.get(item.id);
      if (!row) this.#rows.set(item.id, (row = this.#make(item)));
      if (this.#list.children[place] !== row) this.#list.insertBefore(row, this.#list.children[place] ?? null);
      this.#paintRow(row, item, words, lang);
    });
    const buttons = this.#buttons;
    if (buttons.length && !buttons.some((button) => button.tabIndex === 0)) this.#take(buttons[0]);
  }

  #take(chosen) {
    for (const button of this.#buttons) {
      button.tabIndex = button.nextSibling.tabIndex = button === chosen ? 0 : -1;
    }
  }

  #make({ id, type, isNew }) {
    const button = make(
      "button",
      { class: `item${isNew ? " is-new" : ""}`, part: "item", type: "button", tabindex: "-1", "data-id": id },
      make("span", { class: "disc" }, icon(type)), make("b"), make("time"), make("p"), make("span", { class: "unseen" }),
    );
    const more = make(
      "button",
      { class: "more", part: "more", type: "button", tabindex: "-1", "aria-haspopup": "menu", "aria-expanded": "false" },
      icon("more"),
    );
    button.addEventListener("click", () => this.#on.choose(id));
    more.addEventListener("click", () => this.#on.menu(id, more, more));
    return make("li", { "data-id": id }, button, more);
  }

  #paintRow(row, item, words, lang) {
    const [button, more] = row.children;
    const isUnread = !item.readAt;
    // A digest is as old as its newest part.
    const when = item.updatedAt ?? item.createdAt;
    const [time, mark] = [button.querySelector("time"), button.querySelector(".unseen")];
    button.classList.toggle("is-unread", isUnread);
    button.setAttribute("part", isUnread ? "item item-unread" : "item");
    setText(button.querySelector("b"), item.title ?? "");
    setText(button.querySelector("p"), item.message ?? "");
    time.dateTime = when;
    time.title = new Date(when).toLocaleString(lang);
    setText(time, ago(new Date(when), lang));
    setText(mark, isUnread ? words.unreadMark : "");
    more.setAttribute("aria-label", words.actions(item.title ?? ""));
  }
}
