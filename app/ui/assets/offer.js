// The one card that offers a download, follows it, and says when it failed.
const $ = (selector) => element.querySelector(selector);
const card = $(".hs-card");
const PUT_OFF = "headstart-put-off";
let shown = null;

function draw() {
  // The best pair is looked for when the page opens: it does not displace what was picked meanwhile.
  if (props.value?.dismissable && shown && !shown.dismissable && shown.state !== "done") props.value = shown;
  const offer = (shown = props.value || null);
  const isPutOff = offer?.dismissable && localStorage.getItem(PUT_OFF) === offer.preset;
  card.hidden = !offer || offer.state === "done" || isPutOff;
  if (card.hidden) return;
  const fetching = offer.state === "fetching";
  card.classList.toggle("hs-card-failed", offer.state === "failed");
  $(".hs-card strong").textContent = offer.title;
  $(".hs-card-words span").textContent = offer.words;
  $(".hs-card progress").hidden = !fetching;
  $(".hs-card progress").value = offer.fraction ?? 0;
  $(".hs-fetch").textContent = offer.button ?? "";
  $(".hs-fetch").hidden = fetching;
  $(".hs-cancel").hidden = !fetching;
  $(".hs-later").hidden = fetching || !offer.dismissable;
}

$(".hs-fetch").addEventListener("click", () => trigger("fetch", {preset: props.value.preset}));
$(".hs-cancel").addEventListener("click", () => trigger("give_up", {preset: props.value.preset}));
$(".hs-later").addEventListener("click", () => {
  localStorage.setItem(PUT_OFF, props.value.preset);
  draw();
});
watch("value", draw);
draw();
