// The menu of a row.

/** What can be done with one notification. It stands above everything; focus is in it while it is open. */
class Menu {
  node = make("div", { class: "menu", part: "menu", role: "menu", popover: "manual", hidden: "" });
  // The notification it is about, or null.
  id = null;
  #button = null;
  #opener = null;

  constructor() {
    this.node.addEventListener("keydown", (event) => this.#pressed(event));
  }

  /** Below `button`; `opener` gets the focus back. `entries` are [name of the icon, text, what to do]. */
  open(id, button, opener, label, entries) {
    this.close();
    this.id = id;
    this.#button = button;
    this.#opener = opener;
    this.node.setAttribute("aria-label", label);
    this.node.replaceChildren(...entries.map((entry) => this.#makeItem(...entry)));
    this.node.hidden = false;
    this.node.showPopover?.();
    button.setAttribute("aria-expanded", "true");
    this.#place();
    this.#items[0].focus();
  }

  close() {
    if (this.id === null) return;
    this.id = null;
    this.#button.setAttribute("aria-expanded", "false");
    this.node.hidePopover?.();
    this.node.hidden = true;
  }

  get #items() {
    return [...this.node.children];
  }

  #makeItem(name, text, act) {
    const item = make("button", { type: "button", role: "menuitem", part: "menu-item", tabindex: "-1", "data-act": name }, icon(name), text);
    item.addEventListener("click", () => {
      this.#return();
      act();
    });
    return item;
  }

  #return() {
    this.close();
    this.#opener.focus();
  }

  #pressed(event) {
    const items = this.#items;
    const place = items.indexOf(this.node.getRootNode().activeElement);
    const way = {
      Escape: () => this.#return(),
      ArrowDown: () => items[(place + 1) % items.length].focus(),
      ArrowUp: () => items[(place + items.length - 1) % items.length].focus(),
      Home: () => items[0].focus(),
      End: () => items.at(-1).focus(),
    }[event.key];
    // Nothing of it is for the list below, or for a dialog of the page.
    event.stopPropagation();
    // Tab goes on from where the menu was opened.
    if (event.key === "Tab") this.#return();
    if (!way) return;
    event.preventDefault();
    way();
  }

  #place() {
    const box = this.#button.getBoundingClientRect();
    const [width, height] = [this.node.offsetWidth, this.node.offsetHeight];
    const top = box.bottom + 4 + height > window.innerHeight ? box.top - 4 - height : box.bottom + 4;
    const left = Math.min(box.right - width, document.documentElement.clientWidth - width - 8);
    this.node.style.top = `${Math.max(8, top)}px`;
    this.node.style.left = `${Math.max(8, left)}px`;
  }
}
