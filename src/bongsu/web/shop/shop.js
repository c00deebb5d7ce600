/* The demo's page: products, the choice of a member, and buttons that publish events. The bell shows notifications, and below
 * the shelf is the chat. */

import { Chat } from "./chat.js";

const TEXTS = {
  ko: {
    youAre: "지금 나는",
    headline: "가격을 내리면, 옆 탭의 벨이 울립니다",
    howTo: "이 페이지를 두 탭에서 열고 서로 다른 회원이 되어 보세요. 한쪽에서 가격을 내리면 그 상품을 본 회원 모두에게 바로 알림이 갑니다.",
    second: (name) => `새 탭에서 ${name}님으로 열기 ↗`,
    shelf: "오늘의 선반",
    drop: "가격 내리기",
    cart: "장바구니",
    restock: "재입고",
    neighbours: "이웃에게 인사하기",
    neighboursHint: "한 사람에게만 가는 알림도 있고, 모두에게 가는 알림도 있어요.",
    to: "받는 사람",
    like: "좋아요 누르기",
    comment: "댓글 달기",
    reserve: "예약 확정하기",
    notice: "모두에게 공지",
    price: (won) => `${won.toLocaleString("ko")}원`,
    done: {
      drop: (what) => `${what}: 가격을 내렸어요. 이 상품을 본 회원들의 벨이 울립니다.`,
      restock: (what) => `${what}: 다시 들어왔어요. 장바구니에 담아 둔 회원들에게 알립니다.`,
      cart: (what) => `${what}: 담았어요. 재입고되면 알려 드릴게요.`,
      like: (_, who) => `${who}님의 게시글을 좋아해요.`,
      comment: (_, who) => `${who}님의 게시글에 댓글을 남겼어요.`,
      reserve: (_, who) => `${who}님의 예약을 확정했어요.`,
      notice: () => "모두에게 공지를 보냈어요.",
    },
    failed: "서버에 닿지 못했어요. 다시 눌러 주세요.",
  },
  en: {
    youAre: "You are",
    headline: "Drop a price here, and a bell rings over there",
    howTo: "Open this page in two tabs and choose a different member in each. When a price falls, everyone who has viewed the product is notified at once.",
    second: (name) => `Open a new tab as ${name} ↗`,
    shelf: "On the shelf today",
    drop: "Drop the price",
    cart: "To cart",
    restock: "Restock",
    neighbours: "Say hello to a neighbour",
    neighboursHint: "Some notifications are for one person, and some are for everybody.",
    to: "To",
    like: "Like a post",
    comment: "Comment",
    reserve: "Confirm a booking",
    notice: "Notice to all",
    price: (won) => `₩${won.toLocaleString("en")}`,
    done: {
      drop: (what) => `${what}: the price is down. The bells of those who have seen it ring.`,
      restock: (what) => `${what}: back in stock. Those who have it in their cart are notified.`,
      cart: (what) => `${what}: in your cart. You will be notified when it is restocked.`,
      like: (_, who) => `You like a post of ${who}.`,
      comment: (_, who) => `You commented on a post of ${who}.`,
      reserve: (_, who) => `The booking of ${who} is confirmed.`,
      notice: () => "Everybody got the notice.",
    },
    failed: "The server did not answer. Please press again.",
  },
};

const at = (id) => document.getElementById(id);
const bell = at("bell");
const { visitors, products, names } = await (await fetch("/demo/shelf")).json();
const chat = new Chat(names);
const cards = new Map();
let me = visitors.find((visitor) => visitor.id === new URLSearchParams(location.search).get("member")) ?? visitors[0];
let texts = TEXTS[me.locale];

function post(path, body) {
  return fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

// --- the member -----------------------------------------------------------------------------------------------------------

function become(visitor) {
  me = visitor;
  texts = TEXTS[me.locale];
  document.documentElement.lang = me.locale;
  history.replaceState(null, "", `?member=${me.id}`);
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = texts[element.dataset.text];
  at("visitor").value = me.id;
  const others = visitors.filter((other) => other !== me);
  at("target").replaceChildren(...others.map(option));
  at("second").textContent = texts.second(others[0].name);
  at("second").href = `?member=${others[0].id}`;
  for (const [id, card] of cards) {
    card.querySelector('[data-button="cart"]').setAttribute("aria-pressed", "false");
    showPrice(id);
  }
  const getToken = async () => (await (await post("/demo/visits", { memberId: visitor.id })).json()).token;
  bell.getToken = getToken;
  chat.become(visitor, getToken);
}

const option = (visitor) => new Option(visitor.name, visitor.id);

// --- the shelf ------------------------------------------------------------------------------------------------------------

function put(product) {
  const card = at("card").content.cloneNode(true).firstElementChild;
  card.dataset.product = product.id;
  card.querySelector("use").setAttribute("href", `/demo/products.svg#${product.id}`);
  card.querySelector("h3").textContent = product.name;
  cards.set(product.id, card);
  at("shelf").append(card);
}

function showPrice(id, current = null) {
  const { price } = products.find((product) => product.id === id);
  const card = cards.get(id);
  const now = current ?? card.now ?? price;
  card.now = now;
  const [before, off] = [card.querySelector("s"), card.querySelector(".off")];
  card.classList.toggle("is-cheaper", now < price);
  before.hidden = off.hidden = now >= price;
  before.textContent = texts.price(price);
  off.textContent = `−${Math.round((1 - now / price) * 100)}%`;
  card.querySelector("strong").textContent = texts.price(now);
}

// --- buttons --------------------------------------------------------------------------------------------------------------

async function press(button, productId) {
  const target = visitors.find((visitor) => visitor.id === at("target").value);
  const product = products.find((product) => product.id === productId);
  const answer = await post("/demo/buttons", { button, memberId: me.id, productId: productId ?? "", targetId: target.id }).catch(() => null);
  if (!answer?.ok) return toast(texts.failed);
  const happened = await answer.json();
  if (button === "drop") showPrice(productId, happened.currentPrice);
  if (button === "cart") cards.get(productId).querySelector('[data-button="cart"]').setAttribute("aria-pressed", "true");
  toast(texts.done[button](product?.name, target.name));
}

// How many comments the post of the chosen member has, also those of other pages: the counter `comments`.
async function showComments() {
  const counts = document.hidden ? null : await fetch("/demo/counts").then((answer) => (answer.ok ? answer.json() : null)).catch(() => null);
  if (counts) at("comments").textContent = `💬 ${counts[at("target").value] ?? 0}`;
}
setInterval(showComments, 1_000);

let fading = 0;
function toast(text) {
  clearTimeout(fading);
  at("toast").textContent = text;
  at("toast").hidden = false;
  fading = setTimeout(() => (at("toast").hidden = true), 5_000);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-button]");
  if (button) press(button.dataset.button, button.closest("[data-product]")?.dataset.product);
});
at("visitor").addEventListener("change", (event) => become(visitors.find((visitor) => visitor.id === event.target.value)));
// Show a price drop that another page has published.
bell.addEventListener("bongsu:notification", ({ detail }) => {
  if (detail.type === "PRICE_DROP" && cards.has(detail.refId)) showPrice(detail.refId, detail.data.currentPrice);
});

at("visitor").append(...visitors.map(option));
products.forEach(put);
become(me);
