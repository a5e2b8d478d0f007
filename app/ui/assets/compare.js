// The Compare tab: which of its views is shown, and how the server is asked. Text goes in by textContent alone.
const $ = (selector) => element.querySelector(selector);
const $$ = (selector) => [...element.querySelectorAll(selector)];
const root = $(".hs-compare");
const say = (words) => ($(".hs-c-spoken").textContent = words);
const isDark = () => document.body.classList.contains("dark");

// What the server answers, or null where it said an error, which is then shown.
async function call(act, fields = {}) {
  let answer;
  try {
    answer = JSON.parse(await server.compare({do: act, ...fields}));
  } catch {
    answer = {error: "Headstart does not answer. If it has ended, start it again and reload this page."};
  }
  const failed = Boolean(answer?.error && act !== "news");
  if (failed || act !== "plan") showProblem(failed ? answer.error : "");
  return failed ? null : answer;
}

function showProblem(words) {
  if (!words && polling) return;
  $(".hs-c-problem").hidden = !words;
  $(".hs-c-problem p").textContent = words;
}

const IN_NAV = {setup: "setup", running: "now", result: "now", past: "past", over: "past"};
let polling = false;

function go(view) {
  root.dataset.view = view;
  for (const part of $$("[data-in]")) part.hidden = part.dataset.in !== view;
  for (const link of $$("[data-go]")) {
    if (link.dataset.go === IN_NAV[view]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view !== "result") pause();
}

function nameNow() {
  const now = $("[data-go=now]");
  now.hidden = !polling && !shown;
  now.textContent = polling ? "Running" : "Result";
}

$("[data-go=setup]").addEventListener("click", () => (go("setup"), plan()));
$("[data-go=now]").addEventListener("click", () => go(polling ? "running" : "result"));
$("[data-go=past]").addEventListener("click", () => openPast());

function table(names, rows, draw = (cell) => make("td", "", cell)) {
  const made = make("table", "hs-c-table"), head = make("tr"), body = make("tbody");
  for (const name of names) Object.assign(head.appendChild(make("th", "", name)), {scope: "col"});
  made.append(make("thead"), body);
  made.firstChild.append(head);
  for (const [name, ...cells] of rows) {
    const line = make("tr");
    Object.assign(line.appendChild(make("th", "", name)), {scope: "row"});
    for (const cell of cells) line.append(draw(cell));
    body.append(line);
  }
  return made;
}
