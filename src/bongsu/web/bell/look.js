// Icons, elements and styles.

// 24 × 24, drawn with a stroke.
const ICONS = {
  bell: "M6 9.5a6 6 0 0 1 12 0c0 5.2 2 6.7 2 6.7H4s2-1.5 2-6.7 M10 19.6a2.2 2.2 0 0 0 4 0",
  close: "M6.5 6.5l11 11 M17.5 6.5l-11 11",
  checks: "M3.5 12.8l3.9 3.9L15 8.4 M11.6 15.6l1.5 1.4 7.7-8.6",
  archive: "M4 5.5h16v4H4z M5.5 9.5V19h13V9.5 M10 13h4",
  back: "M11 5.5L4.5 12l6.5 6.5 M4.5 12h15",
  more: "M5.5 12h.01 M12 12h.01 M18.5 12h.01",
  read: "M4 12.6l5 5L20 6.8",
  unread: "M12 7.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9z",
  unarchive: "M4 5.5h16v4H4z M5.5 9.5V19h13V9.5 M12 16.8v-4.6 M9.8 14.2l2.2-2.2 2.2 2.2",
  delete: "M5 7h14 M9.5 7V4.8h5V7 M6.8 7l.8 12h8.8l.8-12 M10.3 10.5v5 M13.7 10.5v5",
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
  header .back { margin-inline: -8px 2px; }
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
  li { position: relative; }
  .item { position: relative; display: grid; grid-template-columns: 36px 1fr auto; column-gap: 12px; width: 100%;
    padding: 10px 12px; padding-inline-end: 40px; border-radius: 12px; }
  li:hover .item, li:has([aria-expanded="true"]) .item { background: var(--_raised); }
  .more { position: absolute; inset-block-start: 5px; inset-inline-end: 6px; display: grid; place-items: center; width: 30px; height: 30px;
    border-radius: 50%; font-size: 18px; color: var(--_muted); opacity: .8; }
  .more svg { stroke-width: 2.6; }
  li:hover .more, .more:focus-visible, .more[aria-expanded="true"] { opacity: 1; }
  .more:hover, .more[aria-expanded="true"] { background: color-mix(in srgb, currentColor 14%, transparent); }
  .more:focus-visible { outline-offset: -2px; }
  .menu { position: fixed; inset: auto; z-index: 2147483001; margin: 0; padding: 5px; min-width: 170px; border: 1px solid var(--_line);
    border-radius: min(12px, var(--_radius)); background: var(--_surface); color: var(--_text); box-shadow: var(--_shadow); }
  .menu button { display: flex; align-items: center; gap: 10px; width: 100%; padding: 8px 12px 8px 9px; border-radius: 8px;
    white-space: nowrap; }
  .menu button svg { flex: none; font-size: 17px; color: var(--_muted); }
  .menu button:hover, .menu button:focus-visible { background: var(--_raised); outline: none; }
  .item:focus-visible { outline-offset: -2px; }
  .disc { grid-row: 1 / 3; display: grid; place-items: center; width: 36px; height: 36px; border-radius: 50%; font-size: 19px;
    background: var(--_raised); color: var(--_muted); }
  .item.is-unread .disc { background: var(--_tint); color: var(--_accent); }
  .item b { font-weight: 500; overflow-wrap: anywhere; color: var(--_muted); }
  .item.is-unread b { font-weight: 650; color: var(--_text); }
  .item time { padding-top: 1px; font-size: 12px; color: var(--_muted); white-space: nowrap; }
  .item p { grid-column: 2 / 4; margin: 1px 0 0; color: var(--_muted); overflow-wrap: anywhere;
    display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 3; overflow: hidden; }
  .item.is-unread p { color: color-mix(in srgb, var(--_text) 82%, var(--_surface)); }
  .item.is-unread::after { content: ""; position: absolute; inset-inline-end: 17px; inset-block-end: 16px; width: 8px; height: 8px;
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

/** Text that has not changed is not touched: a screen reader would read it again. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
