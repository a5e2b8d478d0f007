// The conversation: follows the append-only stream, keeps the tab's id, and turns what people do into events.
const $ = (selector) => element.querySelector(selector);
const turnsBox = $(".hs-turns"), scroller = $(".hs-scroll"), input = $(".hs-input"), card = $(".hs-details");
const turns = [];
let id = null, head = null, cursor = 0, editing = false, busy = false, pinned = null, heard = 0;
let begun = false, halting = false, left = "";
let scrollsNext = null; // whether the next frame scrolls to the end; null while none is awaited

// ---- the stream -------------------------------------------------------------------------------------------

const current = () => turns[turns.length - 1];
const readers = {
  keep: (n) => {
    while (turns.length > n) turns.pop().root.remove();
    hideDetails();
  },
  turn: (question) => {
    addTurn(question);
    begun = true;
    if (halting) halt();
  },
  status: (words, fraction) => current().answer.setStatus(words, fraction),
  left_out: (n) => current().note(n === 1
    ? "The oldest turn no longer fits the context and was left out."
    : `The ${n} oldest turns no longer fit the context and were left out.`),
  think: (index) => current().answer.openThinking(index),
  answer: (index) => current().answer.closeThinking(index),
  failed: (words, log) => current().answer.fail(words, log),
  end: (reason, summary, note) => {
    current().answer.end(summary, note);
    current().done();
    setBusy(false);
  },
};

function follow() {
  const value = props.value || "";
  const first = value.slice(0, value.indexOf("\n") + 1);
  if (first === left) return; // an update that was under way when the conversation was left
  if (first !== head) [head, cursor] = [first, 0];
  const wasAtEnd = Math.abs(belowView()) < 80;
  for (let end; (end = value.indexOf("\n", cursor)) >= 0; cursor = end + 1) {
    const [kind, ...fields] = JSON.parse(value.slice(cursor, end));
    if (kind in KINDS) current().answer.addToken(kind, ...fields);
    else if (kind === "why") current().answer.strip.explain(...fields);
    else {
      current()?.answer.flush();
      readers[kind](...fields);
    }
  }
  current()?.answer.flush();
  $(".hs-empty").hidden = turns.length > 0;
  // Where things lie is asked once a frame, when all is written: each answer to it costs a layout.
  if (scrollsNext === null) requestAnimationFrame(showLatest);
  scrollsNext = scrollsNext || wasAtEnd;
}

function showLatest() {
  for (const turn of turns) turn.answer.strip.showLatest();
  if (scrollsNext) toEnd();
  scrollsNext = null;
}

// How far the end of the conversation lies below what is seen. On a narrow screen the page itself scrolls.
const scrollsItself = () => getComputedStyle(scroller).overflowY === "auto";
const belowView = () => scrollsItself()
  ? scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight
  : element.getBoundingClientRect().bottom - seenHeight();
function seenHeight() {
  const composer = $(".hs-composer");
  return getComputedStyle(composer).position === "fixed" ? composer.getBoundingClientRect().top : window.innerHeight;
}
const toEnd = () => ((scrollsItself() ? scroller : document.scrollingElement).scrollTop += belowView());

function addTurn(question) {
  const root = make("section", "hs-turn");
  const asked = make("div", "hs-question");
  asked.append(make("div", "hs-question-text", question));
  const answer = new AnswerView();
  root.append(asked, answer.root);
  const button = (words, act) => {
    const node = make("button", "hs-link", words);
    node.type = "button";
    node.addEventListener("click", act);
    return node;
  };
  const turn = {root, question, answer};
  turn.note = (words) => root.insertBefore(make("p", "hs-note", words), answer.root);
  turn.done = () => {
    const copy = button("Copy", async () => {
      await copyText(answer.plainText());
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
    answer.foot.append(copy, Object.assign(button("Regenerate", () => ask({again: true})), {className: "hs-link hs-last-only"}));
    say(answer.summary);
  };
  asked.append(Object.assign(button("Edit", () => startEdit(question)), {className: "hs-link hs-last-only"}));
  turns.push(turn);
  turnsBox.append(root);
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

const say = (words) => ($(".hs-said").textContent = words);

// ---- asking -----------------------------------------------------------------------------------------------

function setBusy(now) {
  busy = now;
  element.classList.toggle("hs-busy", now);
  $(".hs-send").hidden = now;
  $(".hs-stop").hidden = !now;
  $(".hs-stop").disabled = false;
  heard = Date.now();
}

function ask(request) {
  if (busy || id === null) return;
  setBusy(true);
  begun = halting = false;
  toEnd();
  trigger("ask", {tab: id, ...request});
}

function halt() {
  halting = false;
  trigger("halt", {tab: id});
}

function send() {
  const text = input.value;
  if (!text.trim() || busy || id === null) return;
  ask(editing ? {text, replace: true} : {text});
  endEdit();
}

function startEdit(question) {
  if (busy) return;
  editing = true;
  $(".hs-editing").hidden = false;
  input.value = question;
  grow();
  input.focus();
}

function endEdit() {
  editing = false;
  $(".hs-editing").hidden = true;
  input.value = "";
  grow();
}

function grow() {
  input.style.height = "auto";
  input.style.height = Math.min(input.scrollHeight, 200) + "px";
}

$(".hs-composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
input.addEventListener("input", grow);
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  } else if (event.key === "Escape" && editing) endEdit();
});
$(".hs-edit-cancel").addEventListener("click", endEdit);
// The second click of a double click on Send lands here; and a Stop must not overtake its question.
$(".hs-stop").addEventListener("click", (event) => {
  if (event.detail > 1) return;
  $(".hs-stop").disabled = true;
  halting = true;
  if (begun) halt();
});
$(".hs-new").addEventListener("click", () => {
  endEdit();
  setBusy(false);
  left = head;
  trigger("renew", {tab: id});
  input.focus();
});
for (const {label, hint, text} of props.examples) {
  const button = make("button", "hs-example");
  button.type = "button";
  button.append(make("strong", "", label), make("span", "", hint));
  button.addEventListener("click", () => ask({text}));
  $(".hs-examples").append(button);
}

// ---- a token's details --------------------------------------------------------------------------------------

function showDetails(token, answer) {
  document.querySelectorAll(".hs-at").forEach((node) => node.classList.remove("hs-at"));
  token.node.classList.add("hs-at");
  card.replaceChildren(make("div", "hs-details-head"));
  card.firstChild.append(make("code", "", JSON.stringify(token.text)), make("span", "k-name k-" + token.code, KINDS[token.code]));
  const list = make("dl");
  for (const [name, value] of answer.describe(token)) list.append(make("dt", "", name), make("dd", "", value));
  card.append(list);
  card.hidden = false;
  const spot = token.node.getClientRects()[0] ?? token.node.getBoundingClientRect();
  const {width, height} = card.getBoundingClientRect();
  const left = Math.max(8, Math.min(spot.left, window.innerWidth - width - 8));
  const above = spot.top - height - 8;
  card.style.left = left + "px";
  card.style.top = (above > 8 ? above : spot.bottom + 8) + "px";
}

function hideDetails() {
  pinned = null;
  card.hidden = true;
  document.querySelectorAll(".hs-at").forEach((node) => node.classList.remove("hs-at"));
}

const answerOf = (node) => turns.find((turn) => turn.answer.root.contains(node))?.answer;

turnsBox.addEventListener("mouseover", (event) => {
  if (pinned) return;
  if (event.target.token) showDetails(event.target.token, answerOf(event.target));
  else if (!card.hidden && !element.querySelector(".hs-text:focus")) hideDetails();
});
turnsBox.addEventListener("mouseleave", () => pinned || element.querySelector(".hs-text:focus") || hideDetails());
turnsBox.addEventListener("click", (event) => {
  const token = event.target.token;
  if (!token || pinned === token) return hideDetails();
  if (!window.getSelection().isCollapsed) return;
  pinned = token;
  showDetails(token, answerOf(event.target));
});
document.addEventListener("scroll", () => card.hidden || hideDetails(), {capture: true, passive: true});

turnsBox.addEventListener("keydown", (event) => {
  if (!event.target.classList.contains("hs-text")) return;
  const answer = answerOf(event.target);
  const shown = answer.tokens.filter((token) => token.text && token.node.getClientRects().length);
  const at = shown.findIndex((token) => token.node.classList.contains("hs-at"));
  const nextRound = (from, step) => {
    let to = from;
    while (shown[to + step] && shown[to].round === shown[from].round) to += step;
    return to;
  };
  const moves = {
    ArrowRight: () => at + 1, ArrowLeft: () => at - 1, Home: () => 0, End: () => shown.length - 1,
    ArrowDown: () => (at < 0 ? 0 : nextRound(at, 1)), ArrowUp: () => (at < 0 ? 0 : nextRound(at, -1)),
  };
  if (event.key === "Escape") return hideDetails();
  if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey || !shown.length) return;
  event.preventDefault();
  const token = shown[Math.max(0, Math.min(shown.length - 1, moves[event.key]()))];
  token.node.scrollIntoView({block: "nearest"});
  requestAnimationFrame(() => {
    pinned = token;
    showDetails(token, answer);
    const rows = answer.describe(token).map(([name, value]) => `${name} ${value}`).join(", ");
    $(".hs-token-said").textContent = `${JSON.stringify(token.text)}, ${KINDS[token.code]}. ${rows}.`;
  });
});
turnsBox.addEventListener("focusout", (event) => event.target.classList.contains("hs-text") && hideDetails());

// Whatever a selection spans, what is copied is text of the output alone.
element.addEventListener("copy", (event) => {
  const range = window.getSelection().rangeCount && window.getSelection().getRangeAt(0);
  if (!range || range.collapsed || !turnsBox.contains(range.commonAncestorContainer)) return;
  const part = range.cloneContents();
  part.querySelectorAll(".k-x, .k-d, button, summary, .hs-rounds, .hs-status").forEach((node) => node.remove());
  const blocks = part.querySelectorAll(".hs-question-text, .hs-text, .hs-summary, .hs-note, .hs-failed");
  const texts = blocks.length ? [...blocks].map((node) => node.textContent) : [part.textContent];
  event.clipboardData.setData("text/plain", texts.join("\n\n"));
  event.preventDefault();
});

// ---- this tab -----------------------------------------------------------------------------------------------

// A lock tells a reload (the old page lets go of it) from a duplicated tab (which brings the same id along).
async function claimId() {
  const fresh = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16)).join("");
  const claim = (name, wait) => new Promise((resolve) => {
    if (!navigator.locks) return resolve(true);
    const held = () => (resolve(true), new Promise(() => {}));
    navigator.locks.request("headstart-" + name, {signal: AbortSignal.timeout(wait)}, held).catch(() => resolve(false));
  });
  const known = sessionStorage.getItem("headstart-tab");
  if (known && (await claim(known, 700))) return known;
  const name = fresh();
  await claim(name, 700);
  sessionStorage.setItem("headstart-tab", name);
  return name;
}

watch("value", () => {
  heard = Date.now();
  follow();
});
document.addEventListener("headstart-beat", () => (heard = Date.now()));
setInterval(async () => {
  if (!busy || Date.now() - heard < 5000) return;
  try {
    await fetch(window.location.href, {method: "HEAD"});
  } catch {
    current()?.answer.fail("Headstart is not running any more. Start it again, then reload this page.", "");
    setBusy(false);
  }
}, 2000);
claimId().then((name) => {
  id = name;
  follow();
  trigger("opened", {tab: id});
});
