// How much memory the chosen models would take, and what is wrong with that.
const bars = element.querySelector(".hs-memory-bars"), words = element.querySelector(".hs-memory-words");

function draw() {
  const value = props.value || {};
  bars.replaceChildren(...(value.bars ?? []).map(barOf));
  if (words.textContent !== (value.words ?? "")) words.textContent = value.words ?? "";
  element.classList.toggle("hs-too-large", value.fits === false);
}
watch("value", draw);
draw();
