// A number beside a slider that is out of bounds becomes the nearest bound as one leaves it: say so.
const note = element.querySelector(".hs-limit");

document.querySelector("#drawer").addEventListener("input", ({target}) => {
  if (target.type !== "number" || target.min === "" || target.max === "") return;
  const most = Number(target.max), least = Number(target.min), value = target.value === "" ? least : Number(target.value);
  note.hidden = value >= least && value <= most;
  if (note.hidden) return;
  note.textContent = `It goes from ${least} to ${most}: ${value} becomes ${value > most ? most : least}.`;
  target.closest(".block").append(note);
});
