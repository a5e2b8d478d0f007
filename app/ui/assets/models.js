// The Models tab: which of its views is shown, how the server is asked, and how a choice gets to the Generate tab.
const $ = (selector) => element.querySelector(selector);
const $$ = (selector) => [...element.querySelectorAll(selector)];
const root = $(".hs-models");
const say = (words) => ($(".hs-m-spoken").textContent = words);

// What the server answers, or null where it said an error, which is then shown.
async function call(act, fields = {}) {
  let answer;
  try {
    answer = JSON.parse(await server.models({do: act, ...fields}));
  } catch {
    answer = {error: "Headstart does not answer. If it has ended, start it again and reload this page."};
  }
  if (answer.error) showProblem(answer.error);
  return answer.error ? null : answer;
}

function showProblem(words) {
  $(".hs-m-problem").hidden = !words;
  $(".hs-m-problem p").textContent = words;
  if (words) $(".hs-m-problem").scrollIntoView({block: "nearest"});
}
$(".hs-m-problem button").addEventListener("click", () => showProblem(""));

// Runs an act of a person's: what was wrong before is settled, and its button can't be pressed twice.
async function act(control, work) {
  showProblem("");
  control.disabled = true;
  try {
    return await work();
  } finally {
    control.disabled = false;
  }
}

function go(view) {
  root.dataset.view = view;
  for (const part of $$("[data-part]")) part.hidden = part.dataset.part !== view;
  for (const link of $$("[data-show]")) {
    if (link.dataset.show === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}
const OPENED = {pairs: () => openPairs(), find: () => openFind()};
for (const link of $$("[data-show]")) link.addEventListener("click", () => {
  showProblem("");
  go(link.dataset.show);
  OPENED[link.dataset.show]?.();
});

// The Generate tab listens for it; without picks it only looks at the files again.
const tellGenerate = (picks = {}, values = {}) =>
  document.dispatchEvent(new CustomEvent("headstart-pick", {detail: {picks, values}}));

function useOnGenerate(picks, values) {
  tellGenerate({preset: "", ...picks}, values);
  document.querySelector("#tabs [data-tab-id=generate]").click();
  document.querySelector(".hs-input")?.focus({preventScroll: true});
}

const options = (select, list, value) => {
  select.replaceChildren(...list.map(([id, words]) => new Option(words, id)));
  select.value = value;
};
const whole = new Intl.NumberFormat("en").format;
