// Below the choice of models: what the choice is good for, drafts that don't fit and why, and the one download.
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
  card.hidden = !offer || isPutOff(offer);
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

function drawPair({summary, unfit, problems}) {
  const open = pair.querySelector("details")?.open;
  pair.replaceChildren(node("span", "hs-pair-words", summary ?? ""));
  for (const words of problems ?? []) pair.append(node("p", "hs-problem", words));
  if (!unfit?.length) return;
  const box = node("details");
  box.open = Boolean(open);
  box.append(node("summary", "", unfit.length === 1 ? "1 file can't be used" : `${unfit.length} files can't be used`));
  const list = node("ul");
  for (const [name, reason] of unfit) {
    const item = node("li");
    item.append(node("strong", "", name), node("span", "", reason));
    list.append(item);
  }
  box.append(list);
  pair.append(box);
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
