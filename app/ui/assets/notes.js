// What the chosen pair is good for, and what is wrong with presets and pairs.
const pair = element.querySelector(".hs-pair");

function draw() {
  const {summary, problems} = props.value || {};
  pair.firstElementChild.textContent = summary ?? "";
  while (pair.children.length > 1) pair.lastChild.remove();
  for (const words of problems ?? []) {
    const line = document.createElement("p");
    line.className = "hs-problem";
    line.textContent = words;
    pair.append(line);
  }
}
watch("value", draw);
draw();
