// Setting up: the form is kept here; the server says what can be picked, how long it may take, what is wrong.
let form = null, plainColumn = null, choices = null, planned = 0, checking = false;

const MODES = [["plain", "Plain"], ["auto", "Auto"], ["draft", "Draft"], ["lookup", "Lookup"]];
const NO_DRAFT = "none";
const drafting = (mode) => mode === "draft" || mode === "auto";

function options(select, list, value) {
  select.replaceChildren(...list.map(([id, words, problem]) => {
    const option = new Option(problem ? `${words}: ${problem}` : words, id);
    option.disabled = Boolean(problem);
    return option;
  }));
  select.value = value;
}

function numberField(column, key, words, tip, limits) {
  const label = make("label", "hs-c-field"), input = make("input");
  Object.assign(input, {type: "number", value: column[key], ...limits});
  input.addEventListener("input", () => (column[key] = input.value, plan()));
  label.title = tip;
  label.append(make("span", "", words), input);
  return label;
}

function drawColumns() {
  const rows = form.columns.map((column, place) => {
    const row = make("li", "hs-c-column"), mode = make("select", "hs-c-small");
    options(mode, MODES, column.mode);
    mode.setAttribute("aria-label", `Column ${place + 1}: mode`);
    mode.addEventListener("change", () => {
      column.mode = mode.value;
      column.draft = draftFor(column);
      drawColumns();
      plan();
    });
    row.append(make("span", "hs-c-number", String(place + 1)), mode);
    if (drafting(column.mode)) {
      const draft = make("select", "hs-c-small hs-c-draft");
      options(draft, column.mode === "auto" ? [[NO_DRAFT, "No draft, look-ups alone", ""], ...choices.drafts.filter(([id]) => id)] : choices.drafts, column.draft);
      draft.setAttribute("aria-label", `Column ${place + 1}: draft model`);
      draft.addEventListener("change", () => (column.draft = draft.value, plan()));
      row.append(draft);
    }
    const whole = {min: 1, max: choices.max_draft, step: 1};
    if (column.mode === "draft" || column.mode === "lookup") row.append(numberField(column, "n_draft", "K", "Draft length: tokens proposed before each pass", whole));
    if (column.mode === "draft") {
      row.append(numberField(column, "p_min", "p_min", "The draft stops when its best guess is less likely; 0 never stops", {min: 0, max: 0.95, step: 0.05}));
    }
    if (column.mode === "lookup") {
      const span = {min: 1, max: 16, step: 1};
      row.append(numberField(column, "ngram_min", "n from", "Fewest tokens that must match to look up", span));
      row.append(numberField(column, "ngram_max", "to", "Most tokens that are matched", span));
    }
    if (column.mode === "plain") row.append(make("span", "hs-c-hint", "one token a pass: what the others are measured by"));
    const remove = button("×", "hs-link hs-c-remove", () => {
      form.columns.splice(place, 1);
      drawColumns();
      plan();
      ($$(".hs-c-remove")[Math.min(place, form.columns.length - 1)] ?? $("[data-add]")).focus();
    });
    remove.setAttribute("aria-label", `Remove column ${place + 1}`);
    row.append(remove);
    return row;
  });
  $(".hs-c-columns").replaceChildren(...rows);
  for (const add of $$("[data-add]")) {
    const full = form.columns.length >= choices.max_columns, none = add.dataset.add === "draft" && !firstDraft();
    add.disabled = full || none;
    add.title = full ? `At most ${choices.max_columns} columns fit side by side` : none ? "No other model on this machine fits this target as a draft" : "";
  }
}

// The draft that a column keeps, or begins with, in its mode and with this target.
function draftFor({mode, draft}) {
  if (!drafting(mode)) return "";
  const fit = choices.drafts.some(([id, , problem]) => id && id === draft && !problem && id !== form.target);
  if (fit || (mode === "auto" && draft === NO_DRAFT)) return draft;
  return firstDraft() || (mode === "auto" ? NO_DRAFT : "");
}

const firstDraft = () => {
  const fit = choices.drafts.find(([id, , problem]) => id && !problem && id !== form.target);
  return fit?.[0] ?? "";
};

function drawForm() {
  options($(".hs-c-target"), choices.targets, form.target);
  drawColumns();
  $(".hs-c-kinds").replaceChildren(...choices.kinds.map(([kind, words]) => {
    const label = make("label", "hs-c-kind"), box = make("input");
    Object.assign(box, {type: "checkbox", checked: form.prompts.kinds.includes(kind)});
    box.addEventListener("change", () => {
      form.prompts.kinds = form.prompts.kinds.filter((one) => one !== kind).concat(box.checked ? [kind] : []);
      plan();
    });
    label.append(box, make("span", "", words));
    return label;
  }));
  $(".hs-c-each select").value = String(form.prompts.each);
  for (const radio of $$(".hs-c-way input")) radio.checked = radio.value === form.prompts.way;
  for (const field of $$("[data-field]")) field.value = form[field.dataset.field];
  $(".hs-c-sweep-key").value = form.sweep.key;
  drawWay();
}

function drawWay() {
  for (const part of $$("[data-way]")) part.hidden = part.dataset.way !== form.prompts.way;
  $(".hs-c-sweep-values").hidden = !form.sweep.key;
}

// Asks what this form would make; of several answers only that to the last question counts.
async function plan(isNewTarget = false) {
  if (!form || (checking && !isNewTarget)) return;
  if (isNewTarget) {
    checking = true;
    showPlan({problem: "Checking which drafts fit this target"});
  }
  const mine = ++planned;
  if (!isNewTarget) await new Promise((resolve) => setTimeout(resolve, 200));
  if (mine !== planned) return;
  const answer = await call("plan", {form});
  if (mine === planned) checking = false;
  if (!answer || mine !== planned) return;
  choices = answer.choices;
  if (isNewTarget) {
    for (const column of form.columns) column.draft = draftFor(column);
    form.columns = form.columns.filter(({mode, draft}) => mode !== "draft" || draft);
    drawColumns();
    return plan();
  }
  showPlan(answer);
}

function showPlan({estimate, note, problem}) {
  $(".hs-c-estimate").textContent = problem || estimate;
  $(".hs-c-estimate").classList.toggle("hs-c-wrong", Boolean(problem));
  $(".hs-c-note").textContent = note ?? "";
  $(".hs-c-start").disabled = Boolean(problem) || polling;
  $(".hs-c-start").textContent = polling ? "A comparison is running" : "Compare";
}

$(".hs-c-target").addEventListener("change", (event) => (form.target = event.target.value, plan(true)));
// Another tab says that the files may have changed.
document.addEventListener("headstart-pick", async () => {
  if (!form) return;
  await plan(true);
  options($(".hs-c-target"), choices.targets, form.target);
});
for (const add of $$("[data-add]")) add.addEventListener("click", () => {
  const mode = add.dataset.add;
  form.columns.push({...plainColumn, mode, draft: draftFor({mode, draft: ""}), n_draft: mode === "lookup" ? 10 : plainColumn.n_draft});
  drawColumns();
  plan();
});
$(".hs-c-each select").addEventListener("change", (event) => (form.prompts.each = Number(event.target.value), plan()));
$(".hs-c-text").addEventListener("input", (event) => (form.prompts.text = event.target.value, plan()));
$(".hs-c-sweep-key").addEventListener("change", (event) => {
  form.sweep.key = event.target.value;
  form.sweep.values = {n_draft: "1, 2, 4, 8", p_min: "0, 0.3, 0.6, 0.9", temperature: "0, 0.5, 1"}[event.target.value] ?? "";
  $(".hs-c-sweep-values input").value = form.sweep.values;
  drawWay();
  plan();
});
$(".hs-c-sweep-values input").addEventListener("input", (event) => (form.sweep.values = event.target.value, plan()));
for (const field of $$("[data-field]")) field.addEventListener("input", () => (form[field.dataset.field] = field.value, plan()));
for (const radio of $$(".hs-c-way input")) radio.addEventListener("change", () => (form.prompts.way = radio.value, drawWay(), plan()));
$(".hs-c-file input").addEventListener("change", async (event) => {
  const file = event.target.files[0];
  if (!file) return;
  form.prompts.file = {name: file.name, text: await file.text()};
  $(".hs-c-file span").textContent = file.name;
  plan();
});
$(".hs-c-setup").addEventListener("submit", async (event) => {
  event.preventDefault();
  if ($(".hs-c-start").disabled) return;
  $(".hs-c-start").disabled = true;
  if (await call("start", {form})) follow();
  else $(".hs-c-start").disabled = false;
});

async function begin() {
  const target = document.querySelector("#target")?.value ?? "";
  const answer = await call("begin", {target});
  if (!answer) return;
  form = answer.form;
  plainColumn = answer.plain;
  choices = answer.choices;
  drawForm();
  showPlan(answer);
}
