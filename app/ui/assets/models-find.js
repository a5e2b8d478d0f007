// Find and download: the hub's search, a repository's files, presets, a name typed by hand, the token.
let searched = 0, hasPresets = false;
const FITS = {fits: "fits this machine", tight: "tight here: it takes most of the memory", large: "too large for this machine"};

async function openFind(words) {
  if (!hasPresets) drawPresets();
  askToken();
  if (words === undefined) return;
  $(".hs-m-words [type=search]").value = words;
  await search();
}

async function drawPresets() {
  hasPresets = true;
  const answer = await call("presets"), presets = answer?.presets ?? [];
  const draw = (preset) => {
    const line = make("li"), words = make("span", "hs-m-file");
    words.append(make("b", "", preset.file), make("small", "", preset.summary), mark(preset));
    line.append(words, fetcher(preset));
    return line;
  };
  const ranks = Object.keys(FITS);
  const untried = presets.filter(({tried}) => !tried).sort((one, other) => ranks.indexOf(one.fit) - ranks.indexOf(other.fit));
  $(".hs-m-presets").hidden = !presets.length;
  $(".hs-m-presets > ul").replaceChildren(...presets.filter(({tried}) => tried).map(draw));
  $(".hs-m-untried").hidden = !untried.length;
  $(".hs-m-untried summary").textContent = `${untried.length} well-known pairs, not tried here`;
  $(".hs-m-untried ul").replaceChildren(...untried.map(draw));
}

const mark = ({fit, size}) => make("small", `hs-m-fit hs-m-is-${fit}`, `${size} · ${FITS[fit]}`);

async function search() {
  const mine = ++searched, field = $(".hs-m-words [type=search]"), filters = new FormData($(".hs-m-words"));
  showProblem("");
  $(".hs-m-found").textContent = "Asking the hub";
  const answer = await call("search", {
    words: field.value,
    sort: filters.get("sort"),
    size: filters.get("size"),
    licence: filters.get("licence"),
    no_gated: filters.has("no_gated"),
  });
  if (mine !== searched) return;
  const found = answer?.found ?? [];
  $(".hs-m-found").textContent = !answer ? "" : found.length ? `${found.length} ${found.length === 1 ? "repository" : "repositories"}` : "The hub has nothing like that. Fewer words or filters find more.";
  $(".hs-m-repositories").replaceChildren(...found.map(drawRepository));
}
$(".hs-m-words").addEventListener("submit", (event) => (event.preventDefault(), search()));
$(".hs-m-words").addEventListener("change", ({target}) => target.name && searched && search());

function drawRepository(one) {
  const item = make("li"), fold = make("details", "hs-c-card hs-m-repository"), head = make("summary"), words = make("span", "hs-m-file");
  words.append(make("b", "", one.repository), make("small", "", [one.words, one.licence].filter(Boolean).join(" · ")));
  head.append(words);
  if (one.gated) head.append(make("span", "hs-m-kind", "gated"));
  const body = make("div", "hs-m-body");
  fold.append(head, body);
  fold.addEventListener("toggle", () => fold.open && !body.children.length && drawFiles(one.repository, body));
  item.append(fold);
  return item;
}

// What is marked as here may have been removed: lists are asked for again when they are opened.
function askAnew() {
  hasPresets = false;
  for (const fold of $$(".hs-m-repository")) (fold.open = false), fold.querySelector(".hs-m-body").replaceChildren();
  follow();
}

async function drawFiles(repository, body) {
  body.replaceChildren(make("p", "hs-c-hint", "Asking for its files"));
  const answer = await call("files", {repository});
  if (!answer) return body.replaceChildren();
  const list = make("ul", "hs-m-files");
  let before = null;
  for (const file of answer.files) {
    const line = make("li"), words = make("span", "hs-m-file"), kind = make("b", "hs-m-type", file.quantization === before ? "" : file.quantization);
    before = file.quantization;
    words.append(make("span", "", [file.file, file.parts].filter(Boolean).join(" · ")), mark(file));
    line.append(kind, words, fetcher(file));
    list.append(line);
  }
  body.replaceChildren(list);
  if (!answer.files.length) body.replaceChildren(make("p", "hs-c-hint", "No GGUF file is in this repository."));
  if (answer.gated) body.prepend(make("p", "hs-m-reason", "Gated: its terms must be accepted on the hub, and a token kept here, before it can be downloaded."));
}

$(".hs-m-direct").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [field, control] = event.target.elements;
  if (!field.value.trim()) return field.focus();
  if (await download(field.value, control)) (field.value = ""), go("queue");
});

const OURS = "the token saved on the Models page";

async function askToken(fields = {}) {
  const answer = await call("token", fields);
  if (!answer) return;
  $(".hs-m-source").textContent = answer.source ? `In use: ${answer.source}.` : "None is in use.";
  $(".hs-m-drop-token").hidden = answer.source !== OURS;
}
$(".hs-m-token form").addEventListener("submit", (event) => {
  event.preventDefault();
  const [field, control] = event.target.elements, token = field.value;
  field.value = "";
  if (token) act(control, () => askToken({token}));
});
$(".hs-m-drop-token").addEventListener("click", (event) => act(event.target, () => askToken({token: ""})));
