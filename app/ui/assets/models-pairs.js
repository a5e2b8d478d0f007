// Pairs: drafts for a target, the memory that a pair takes, and where to find a draft.
let target = "", draft = "", asked = 0, weighed = 0, foreseen = 0;

function drawTargets() {
  const usable = rows.filter((row) => row.usable).sort((one, other) => (one.name < other.name ? -1 : 1));
  options($(".hs-m-target"), usable.length ? usable.map(({id, name}) => [id, name]) : [["", "no model yet"]], target);
  if (!usable.some(({id}) => id === target)) target = "";
}

async function openPairs(id) {
  const isAsked = id !== undefined;
  go("pairs");
  if (!rows.length) await look();
  const onGenerate = document.querySelector("#target")?.value;
  const usable = rows.filter((row) => row.usable);
  id ??= target || (usable.some((row) => row.id === onGenerate) ? onGenerate : usable[0]?.id) || "";
  $(".hs-m-target").value = id;
  if (isAsked) $(".hs-m-target").focus({preventScroll: true});
  if (id) await chooseTarget(id, id === target ? draft : "");
  else $(".hs-m-wait").textContent = "A target is needed first: “Find and download” gets one.";
}

async function chooseTarget(id, wanted = "") {
  target = id;
  draft = wanted;
  const mine = ++asked;
  $(".hs-m-drafts > div").replaceChildren();
  $(".hs-m-wait").textContent = "Checking which drafts fit";
  $(".hs-m-use").disabled = true;
  $(".hs-m-siblings").hidden = true;
  weigh();
  const answer = await call("pairs", {target: id});
  if (mine !== asked) return;
  $(".hs-m-wait").textContent = "";
  if (!answer) return;
  drawDrafts(answer.drafts);
  drawSiblings(answer);
}

function drawDrafts(drafts) {
  const fitting = drafts.filter(({fits}) => fits), others = drafts.filter(({fits}) => !fits);
  const nodes = fitting.map((one) => drawDraft(one, `${one.size} · ${one.note}`));
  nodes.push(drawDraft({id: "", name: "No draft", fits: true}, "Auto then has its look-ups alone"));
  if (others.length) {
    const fold = make("details", "hs-m-others"), list = make("div");
    fold.open = others.length <= 8;
    list.append(...others.map((one) => drawDraft(one, one.note)));
    fold.append(make("summary", "", others.length === 1 ? "1 model does not fit" : `${others.length} models do not fit`), list);
    nodes.push(fold);
  }
  $(".hs-m-drafts > div").replaceChildren(...nodes);
  chooseDraft((fitting.find(({id}) => id === draft) ?? fitting[0])?.id ?? "");
  say(fitting.length ? `${fitting.length} of ${drafts.length} models fit as a draft, best: ${fitting[0].name}` : "No model here fits as a draft");
}

function drawDraft({id, name, fits}, note) {
  const label = make("label", fits ? "hs-m-draft" : "hs-m-draft hs-m-misfit"), radio = make("input"), words = make("span");
  Object.assign(radio, {type: "radio", name: "hs-m-draft", value: id, disabled: !fits});
  radio.addEventListener("change", () => chooseDraft(id));
  words.append(make("b", "", name), make("small", "", note));
  label.append(radio, words);
  return label;
}

function chooseDraft(id) {
  draft = id;
  for (const radio of $$(".hs-m-draft input")) radio.checked = radio.value === id;
  $(".hs-m-use").textContent = id ? "Use this pair" : "Use without a draft";
  $(".hs-m-use").disabled = false;
  weigh();
  lookAhead();
}

// Of several answers only that to the last question counts.
async function weigh() {
  const mine = ++weighed;
  await new Promise((resolve) => setTimeout(resolve, 150));
  if (mine !== weighed || !target) return;
  $(".hs-m-memory").classList.add("hs-m-stale");
  if (!$(".hs-m-devices").children.length) $(".hs-m-verdict").textContent = "Working out the memory";
  const answer = await call("estimate", {target, draft, context: $(".hs-m-memory input").value});
  if (mine !== weighed) return;
  $(".hs-m-memory").classList.remove("hs-m-stale");
  drawMemory(answer);
}

async function lookAhead() {
  const mine = ++foreseen;
  const answer = target ? await call("outlook", {target, draft}) : null;
  if (mine !== foreseen) return;
  $(".hs-m-outlook").hidden = !answer;
  if (!answer) return;
  $(".hs-m-outlook > p").textContent = answer.headline;
  $(".hs-m-outlook > div").replaceChildren(...(answer.rows.length ? outlookRows(answer) : []));
}

function drawMemory(answer) {
  $(".hs-m-verdict").textContent = answer ? answer.words || "It fits." : "The memory can't be told.";
  $(".hs-m-verdict").classList.toggle("hs-m-over", answer?.fits === false);
  $(".hs-m-devices").replaceChildren(...(answer?.bars ?? []).map(barOf));
}

function drawSiblings({siblings, family}) {
  $(".hs-m-siblings").hidden = false;
  $(".hs-m-siblings ul").replaceChildren(...siblings.map((one) => {
    const line = make("li"), words = make("span", "hs-m-file");
    words.append(make("b", "", one.file), make("small", "", [one.repository, one.size].filter(Boolean).join(" · ")));
    words.title = one.seen_at;
    line.append(words, fetcher(one));
    return line;
  }));
  if (!siblings.length) $(".hs-m-siblings ul").append(make("li", "hs-c-hint", "No small relative of this model is known by name."));
  $(".hs-m-family").textContent = `Search the hub for “${family}”`;
  $(".hs-m-family").onclick = () => (go("find"), openFind(family));
}

$(".hs-m-target").addEventListener("change", (event) => (showProblem(""), chooseTarget(event.target.value)));
$(".hs-m-memory input").addEventListener("input", () => (showProblem(""), weigh()));
$(".hs-m-use").addEventListener("click", () =>
  useOnGenerate({target, mode: "auto", draft: draft || "none"}, {n_ctx: Number($(".hs-m-memory input").value)}));
