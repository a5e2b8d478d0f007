// The figures beside the answer. Every text comes ready from the server and is set as text.
const LIST = [
  ["acceptance", "Acceptance rate", "Of the tokens that were drafted, how many the target kept. Discarded ones count as drafted."],
  ["length", "Mean acceptance length", "Tokens gained by a pass that had a draft: the target's own one and the accepted ones."],
  ["per_pass", "Tokens per pass", "All tokens of the answer over all passes of the target. Plain decoding makes exactly 1."],
  ["passes", "Target passes", "How often the target model ran to make this answer."],
  ["tokens", "Tokens", "Tokens of the answer so far, the end mark included."],
  ["first", "Time to first token", "From the start of the run to the first token; reading the prompt is part of it, loading is not."],
];
const LEGEND = [
  ["a", "accepted", "drafted and kept"],
  ["c", "recovered", "the target's correction"],
  ["b", "bonus", "the target's, after a kept draft"],
  ["t", "target", "the target's, nothing drafted"],
  ["x", "rejected", "drafted, tested, not kept"],
  ["d", "discarded", "drafted, never tested"],
];
const node = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};
const list = element.querySelector(".hs-list"), chart = element.querySelector(".hs-chart");
const tips = {
  speed: "Decode speed: tokens of the answer over the time from the end of reading the prompt to the last token.",
  ratio: "This answer's speed over that of plain decoding on this machine, which is estimated from the costs of passes measured here.",
};
const withTip = (target, words) => {
  const tip = node("span", "hs-tip", words);
  tip.setAttribute("role", "tooltip");
  tip.id = "hs-tip-" + Math.random().toString(36).slice(2);
  target.tabIndex = 0;
  target.classList.add("hs-has-tip");
  target.setAttribute("aria-describedby", tip.id);
  target.append(tip);
};

for (const [key, name, meaning] of LIST) {
  const row = node("div", "hs-row"), value = node("dd", "", "—");
  const term = node("dt", "", name);
  value.dataset.figure = key;
  row.append(term, value);
  list.append(row);
  withTip(term, meaning);
}
list.append(node("div", "hs-prompt"));
list.lastChild.dataset.figure = "prompt";
for (const [code, name, meaning] of LEGEND) {
  const item = node("li"), words = node("span", "hs-legend-words");
  words.append(node("span", "k-name k-" + code, name), node("span", "hs-legend-meaning", meaning));
  const count = node("span", "hs-count", "");
  count.dataset.count = name;
  item.append(words, count);
  element.querySelector(".hs-legend ul").append(item);
}
withTip(element.querySelector(".hs-big"), tips.speed);
const ratio = element.querySelector(".hs-ratio");
const ratioText = node("span", "", "—");
ratioText.dataset.figure = "ratio";
delete ratio.dataset.figure;
ratio.replaceChildren(ratioText);
withTip(ratio, tips.ratio);

const toggle = element.querySelector(".hs-switch input");
const showRejected = (shown) => document.documentElement.classList.toggle("hs-hide-rejected", !shown);
toggle.checked = localStorage.getItem("headstart-hide-rejected") === null;
showRejected(toggle.checked);
toggle.addEventListener("change", () => {
  if (toggle.checked) localStorage.removeItem("headstart-hide-rejected");
  else localStorage.setItem("headstart-hide-rejected", "yes");
  showRejected(toggle.checked);
});

function drawChart(positions) {
  chart.setAttribute("aria-label", positions.length
    ? positions.map(([accepted, drafted], i) => `position ${i + 1}: ${accepted} of ${drafted}`).join("; ")
    : "nothing drafted yet");
  chart.classList.toggle("hs-nothing", !positions.length);
  if (!positions.length) return chart.replaceChildren(node("span", "", "nothing drafted yet"));
  while (chart.children.length > positions.length || chart.querySelector(":scope > span")) chart.lastChild.remove();
  positions.forEach(([accepted, drafted], i) => {
    let bar = chart.children[i];
    if (!bar) {
      bar = node("div", "hs-bar");
      bar.append(node("b"), node("i"), node("small"));
      chart.append(bar);
    }
    const rate = drafted ? accepted / drafted : 0;
    bar.title = `position ${i + 1}: ${accepted} of ${drafted} accepted`;
    // So many numbers would lie over each other.
    bar.lastChild.textContent = positions.length <= 12 || i === 0 || i % 5 === 4 ? String(i + 1) : "";
    bar.firstChild.textContent = positions.length <= 8 ? Math.round(100 * rate) + "%" : "";
    bar.children[1].style.setProperty("--rate", rate);
  });
}

function draw() {
  const value = props.value || {};
  for (const spot of element.querySelectorAll("[data-figure]")) {
    const text = value[spot.dataset.figure] ?? (["prompt", "doing"].includes(spot.dataset.figure) ? "" : "—");
    if (spot.textContent !== text) spot.textContent = text;
  }
  for (const spot of element.querySelectorAll("[data-count]")) {
    const count = value.counts?.[spot.dataset.count];
    spot.textContent = count ? String(count) : "";
  }
  element.classList.toggle("hs-slower", Boolean(value.slower));
  element.classList.toggle("hs-nothing-yet", (value.speed ?? "—") === "—");
  element.classList.toggle("hs-running", Boolean(value.running));
  drawChart(value.chart ?? []);
  document.dispatchEvent(new Event("headstart-beat"));
}
watch("value", draw);
draw();
