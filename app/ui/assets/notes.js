// Below the choice of models: what the choice is good for, what is wrong, and the one download.
const $ = (selector) => element.querySelector(selector);
const card = $(".hs-card"), pair = $(".hs-pair");
const node = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};
const isPutOff = (offer) => offer.dismissable && localStorage.getItem("headstart-put-off") === offer.preset;

function drawCard(offer) {
  card.hidden = !offer || offer.state === "done" || isPutOff(offer);
  if (card.hidden) return;
  const fetching = offer.state === "fetching";
  $(".hs-card strong").textContent = offer.title;
  $(".hs-card-words span").textContent = offer.words;
  card.classList.toggle("hs-card-failed", offer.state === "failed");
  const bar = $(".hs-card progress");
  bar.hidden = !fetching;
  if (offer.fraction !== null && offer.fraction !== undefined) bar.value = offer.fraction;
  $(".hs-fetch").hidden = fetching;
  $(".hs-fetch").textContent = offer.button;
  $(".hs-cancel").hidden = !fetching;
  $(".hs-later").hidden = fetching || !offer.dismissable;
}

function drawPair({summary, problems}) {
  pair.replaceChildren(node("span", "hs-pair-words", summary ?? ""));
  for (const words of problems ?? []) pair.append(node("p", "hs-problem", words));
}

function draw() {
  const value = props.value || {};
  drawCard(value.offer);
  drawPair(value);
}

$(".hs-fetch").addEventListener("click", () => trigger("fetch", {preset: props.value.offer.preset}));
$(".hs-cancel").addEventListener("click", () => trigger("give_up", {preset: props.value.offer.preset}));
$(".hs-later").addEventListener("click", () => {
  localStorage.setItem("headstart-put-off", props.value.offer.preset);
  draw();
});
watch("value", draw);
draw();
