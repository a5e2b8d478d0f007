// Who answers: preset, target, mode, draft. What can't be chosen is listed, disabled, with its reason.
const selects = [...element.querySelectorAll("select")];
const modes = element.querySelector(".hs-mode div");

const PATIENCE_MS = 10000;
let answer = props.value, asked = 0, unanswered = [], patientUntil = 0;

// Answers take a while. Questions could overtake each other, so only one is on its way, with every pick so far.
function ask(picks, values = {}) {
  unanswered.push({asked: ++asked, picks, values});
  show();
  if (Date.now() > patientUntil) send();
}

function send() {
  patientUntil = Date.now() + PATIENCE_MS; // an answer that failed never comes
  trigger("picked", {asked, since: answer, unanswered: [...unanswered]});
}

function changed() {
  if (props.value?.picked) return; // by this page itself
  answer = props.value;
  unanswered = unanswered.filter(step => step.asked > (answer?.answers ?? 0));
  show();
  settle();
  if (!answer?.answers) return; // of a page that was just opened, or of files that came
  patientUntil = 0;
  if (unanswered.length) send();
}

function show() {
  if (unanswered.length) props.value = Object.assign({}, answer, ...unanswered.map(({picks}) => picks), {picked: asked});
  draw();
}

const pick = (name, value) => ask(name === "preset" ? {preset: value} : {preset: "", [name]: value});

for (const [value, words] of [["auto", "Auto"], ["draft", "Draft"], ["lookup", "Lookup"], ["plain", "Plain"]]) {
  const label = document.createElement("label"), radio = document.createElement("input"), span = document.createElement("span");
  Object.assign(radio, {type: "radio", name: "hs-mode", value});
  radio.addEventListener("change", () => pick("mode", value));
  span.textContent = words;
  label.append(radio, span);
  modes.append(label);
}
for (const select of selects) select.addEventListener("change", () => pick(select.dataset.pick, select.value));

function groupIn(select, name) {
  if (!name) return select;
  if (select.lastChild?.label !== name) {
    const group = document.createElement("optgroup");
    group.label = name;
    select.append(group);
  }
  return select.lastChild;
}

function draw() {
  const value = props.value || {};
  for (const select of selects) {
    const name = select.dataset.pick, options = value.options?.[name] ?? [];
    const drawn = JSON.stringify(options);
    if (select.drawn !== drawn) {
      select.replaceChildren();
      for (const [id, words, problem, group] of options) {
        const option = new Option(problem ? `${words}: ${problem}` : words, id);
        option.disabled = Boolean(problem);
        groupIn(select, group).append(option);
      }
      select.drawn = drawn;
    }
    select.value = value[name] ?? "";
  }
  document.documentElement.dataset.mode = value.mode ?? "";
  for (const radio of modes.querySelectorAll("input")) radio.checked = radio.value === value.mode;
  element.querySelector("#draft-pick").hidden = value.mode !== "draft" && value.mode !== "auto";
}
// Another tab of the page picks for this one, or says that the files may have changed.
document.addEventListener("headstart-pick", ({detail}) => ask(detail.picks, detail.values));
watch("value", changed);
draw();

// What follows from picks and settings together is asked for once nothing has changed for a moment.
let settling;
function settle() {
  clearTimeout(settling);
  settling = setTimeout(() => trigger("settled"), 150);
}
for (const kind of ["input", "change", "click"]) {
  document.addEventListener(kind, ({target}) => target.closest?.("#drawer") && settle());
}
