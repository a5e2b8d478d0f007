// On disk: the table, its search and order, removing, and the folders.
const COLUMNS = [
  ["name", "Name"], ["architecture", "Architecture"], ["parameters", "Parameters"], ["quantization", "Type"],
  ["context", "Context"], ["vocabulary", "Vocabulary"], ["template", "Chat template"], ["size", "Size"],
];
let rows = [], lines = new Map(), sort = {key: "name", down: false}, looking = null, drawn = "";

// Asks until the files are read; whoever asks meanwhile waits for the same answer.
function look() {
  looking ??= (async () => {
    let answer = await call("look", {fresh: true});
    while (answer?.reading) {
      showReading(...answer.reading);
      answer = await call("look", {fresh: false});
    }
    showReading();
    if (answer) drawDisk(answer);
    looking = null;
  })();
  return looking;
}

function showReading(done, total) {
  $(".hs-m-reading").hidden = done === undefined;
  $(".hs-m-reading span").textContent = total ? `Reading new model files: ${done} of ${total}` : "Looking for model files";
  const meter = $(".hs-m-reading progress");
  if (total) meter.value = done / total;
  else meter.removeAttribute("value");
}

function drawDisk(answer) {
  if (drawn === (drawn = JSON.stringify(answer))) return; // whoever is at a row stays there
  rows = answer.rows;
  lines = new Map(rows.map((row) => [row.id, drawRow(row)]));
  drawOrder();
  $(".hs-m-places ul").replaceChildren(...answer.places.map(drawPlace));
  $(".hs-m-free").textContent = `${answer.free} are free on the disk of the models folder.`;
  drawTargets();
}

const cell = (label, words, className = "") => {
  const made = make("td", className, words);
  made.setAttribute("role", "cell");
  if (words !== "") made.dataset.label = label;
  return made;
};

function drawRow(row) {
  const line = make("tr", row.usable ? "" : "hs-m-unusable"), name = make("th", "hs-m-name");
  line.setAttribute("role", "row");
  Object.assign(name, {scope: "row", title: row.id}).setAttribute("role", "rowheader");
  name.append(make("span", "hs-m-title", row.name));
  if (row.kind) name.firstChild.append(make("span", "hs-m-kind", row.kind));
  if (row.reason) name.append(make("span", "hs-m-reason", row.reason));
  name.append(make("span", "hs-m-where", [row.source, row.licence].filter(Boolean).join(" · ")));
  const actions = cell("", "", "hs-m-actions");
  if (row.usable) {
    actions.append(
      named(button("Use as target", "hs-link", () => useOnGenerate({target: row.id})), row),
      named(button("Drafts for it", "hs-link", () => openPairs(row.id)), row));
  }
  if (row.removable) actions.append(named(button("Remove", "hs-link hs-m-remove-it", () => askRemove(row)), row));
  line.append(name, cell("architecture", row.architecture), cell("parameters", row.parameters_words),
    cell("type", row.quantization), cell("context", row.context ? whole(row.context) : ""),
    cell("vocabulary", row.vocabulary ? whole(row.vocabulary) : ""),
    cell("chat template", row.template === null ? "" : row.template ? "yes" : "no"), cell("size", row.size_words), actions);
  row.text = [row.name, row.architecture, row.quantization, row.licence, row.source, row.kind].join(" ").toLowerCase();
  return line;
}

const named = (made, row) => (made.setAttribute("aria-label", `${made.textContent}: ${row.name}`), made);

function drawOrder() {
  const {key, down} = sort, compare = new Intl.Collator("en", {numeric: true}).compare;
  const value = (row) => (row[key] === null ? -1 : row[key]);
  rows.sort((one, other) => (key === "template" || typeof one[key] === "number" ? value(one) - value(other) : compare(one[key], other[key])) * (down ? -1 : 1)
    || compare(one.name, other.name));
  $(".hs-m-table tbody").replaceChildren(...rows.map(({id}) => lines.get(id)));
  for (const head of $$(".hs-m-table thead th[data-key]")) {
    const isSorted = head.dataset.key === key;
    if (isSorted) head.setAttribute("aria-sort", down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  $(".hs-m-sort select").value = key;
  drawFilter();
}

function drawFilter() {
  const words = $(".hs-m-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const fits = words.every((word) => row.text.includes(word));
    lines.get(row.id).hidden = !fits;
    shown += fits;
  }
  $(".hs-m-count").textContent = !rows.length ? "No model files yet: “Find and download” gets some"
    : shown === rows.length ? `${shown} ${shown === 1 ? "model" : "models"}` : `${shown} of ${rows.length} models`;
  $(".hs-m-list").hidden = !shown;
}

function sortBy(key) {
  const numbers = ["parameters", "context", "vocabulary", "size", "template"].includes(key);
  sort = {key, down: sort.key === key ? !sort.down : numbers};
  drawOrder();
}

for (const [key, words] of COLUMNS) {
  const head = make("th");
  Object.assign(head, {scope: "col"}).setAttribute("role", "columnheader");
  head.dataset.key = key;
  head.append(button(words, "hs-m-by", () => sortBy(key)));
  $(".hs-m-table thead tr").append(head);
}
const lastHead = make("th");
lastHead.setAttribute("role", "columnheader");
lastHead.append(make("span", "hs-sr", "Actions"));
$(".hs-m-table thead tr").append(lastHead);
options($(".hs-m-sort select"), COLUMNS.map(([key, words]) => [key, words.toLowerCase()]), "name");
$(".hs-m-sort select").addEventListener("change", (event) => sortBy(event.target.value));
$(".hs-m-filter").addEventListener("input", drawFilter);
$(".hs-m-again").addEventListener("click", (event) => act(event.target, look));

function askRemove(row) {
  const dialog = $(".hs-m-remove");
  dialog.querySelector("p").textContent = `${row.name}, ${row.size_words}, is deleted from the models folder: ${row.id}. This can't be undone.`;
  $(".hs-m-keep").onclick = () => dialog.close();
  $(".hs-m-drop").onclick = async () => {
    dialog.close();
    const answer = await act($(".hs-m-drop"), () => call("remove", {path: row.id}));
    if (!answer) return;
    say(answer.said);
    await look();
    askAnew();
    tellGenerate();
    $(".hs-m-filter").focus();
  };
  dialog.showModal();
}

function drawPlace(place) {
  const line = make("li"), words = make("span", "hs-m-place");
  words.append(make("b", "", place.title), make("span", "hs-m-path", place.path));
  line.append(words, make("span", "hs-m-number", `${place.count} ${place.count === 1 ? "model" : "models"}`));
  if (place.forgettable) {
    const forget = button("Forget", "hs-link", () => changeFolders(forget, "forget_folder", place.path));
    forget.setAttribute("aria-label", `Forget the folder ${place.path}`);
    line.append(forget);
  }
  return line;
}

async function changeFolders(control, name, path) {
  const isDone = await act(control, () => call(name, {path}));
  if (!isDone) return false;
  await look();
  tellGenerate();
  return true;
}
$(".hs-m-places form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [field, control] = event.target.elements;
  if (await changeFolders(control, "add_folder", field.value)) field.value = "";
});
