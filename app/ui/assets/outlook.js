// One line on what Auto may gain with the chosen pair; it opens to the kinds of task.
const words = element.querySelector("p"), details = element.querySelector("details");

function draw() {
  const {headline, rows} = props.value || {};
  words.hidden = !headline || rows.length > 0;
  details.hidden = !headline || !rows.length;
  if (!headline) return;
  words.textContent = details.firstElementChild.textContent = headline;
  details.lastElementChild.replaceChildren(...outlookRows(props.value));
}
document.addEventListener("click", ({target}) => details.contains(target) || (details.open = false));
details.addEventListener("keydown", ({key}) => {
  if (key !== "Escape") return;
  details.open = false;
  details.firstElementChild.focus();
});
watch("value", draw);
draw();
