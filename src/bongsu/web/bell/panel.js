// The nodes of the bell and its panel: made once, painted whenever something has changed.

/** The nodes by name. `menu` is the node of the menu of a row, which opens inside the panel. */
function buildNodes(menu) {
  const badge = make("span", { class: "badge", part: "badge", "aria-hidden": "true" });
  const lamp = make("span", { class: "lamp", part: "lamp", "aria-hidden": "true" });
  const bell = make(
    "button",
    { class: "bell", part: "bell", type: "button", "aria-haspopup": "dialog", "aria-controls": "panel" },
    icon("bell"), badge, lamp,
  );
  const said = make("div", { class: "unseen", role: "status", "aria-live": "polite" });
  const title = make("h2", { id: "title" });
  const back = make("button", { class: "tool back", part: "back", type: "button" }, icon("back"));
  const readAll = make("button", { class: "tool", part: "read-all", type: "button" }, icon("checks"));
  const archive = make("button", { class: "tool", part: "archive", type: "button" }, icon("archive"));
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
    make("header", {}, back, title, readAll, archive, close), state, make("div", { class: "scroll" }, list, none, older),
    menu,
  );
  return { bell, badge, lamp, said, title, back, readAll, archive, close, state, stateText, stateButton, list, older, none, noneTitle, noneHint, panel };
}

/** The bell itself: how many are unread, and whether the stream is interrupted. */
function paintBell(ui, words, { unread, state, isInterrupted, isOpen }) {
  const count = words.unread(unread);
  ui.bell.setAttribute("aria-label", [words.title, count, ...(isInterrupted ? [words[state]] : [])].join(", "));
  ui.bell.setAttribute("aria-expanded", String(isOpen));
  ui.bell.classList.toggle("is-interrupted", isInterrupted);
  ui.badge.hidden = unread === 0;
  ui.badge.textContent = unread > 99 ? "99+" : String(unread);
  ui.lamp.hidden = !isInterrupted;
}

/** All of the panel but the rows. `state` is that of the stream if it is interrupted, or what went wrong, or empty. */
function paintPanel(ui, words, { isArchive, isLoaded, isEmpty, hasOlder, unread, state }) {
  ui.title.textContent = isArchive ? words.archiveTitle : words.title;
  for (const name of ["back", "readAll", "archive", "close"]) {
    ui[name].setAttribute("aria-label", words[name]);
    ui[name].title = words[name];
  }
  ui.back.hidden = !isArchive;
  ui.readAll.hidden = ui.archive.hidden = isArchive;
  ui.readAll.disabled = unread === 0;
  ui.state.hidden = !state;
  setText(ui.stateText, state ? words[state] : "");
  ui.stateButton.hidden = !["replaced", "refused"].includes(state);
  ui.stateButton.textContent = state === "replaced" ? words.here : words.again;
  ui.none.hidden = !isEmpty;
  const [empty, hint] = isArchive ? [words.emptyArchive, words.emptyArchiveHint] : [words.empty, words.emptyHint];
  ui.noneTitle.textContent = isLoaded ? empty : state ? "" : words.loading;
  ui.noneHint.textContent = isLoaded ? hint : "";
  ui.older.hidden = !hasOlder;
  ui.older.textContent = words.older;
}

/** Puts the panel below the bell, or above it where there is more room, and never beyond the edge of the window. */
function placePanel({ bell, panel }) {
  const box = bell.getBoundingClientRect();
  const [width, height] = [document.documentElement.clientWidth, window.innerHeight];
  const isBelow = height - box.bottom >= Math.min(420, box.top);
  const left = box.left + box.width / 2 > width / 2 ? box.right - panel.offsetWidth : box.left;
  panel.style.left = `${Math.max(8, Math.min(left, width - panel.offsetWidth - 8))}px`;
  panel.style.top = isBelow ? `${box.bottom + 8}px` : "auto";
  panel.style.bottom = isBelow ? "auto" : `${height - box.top + 8}px`;
  panel.style.maxHeight = `${Math.min(560, (isBelow ? height - box.bottom : box.top) - 16)}px`;
}
