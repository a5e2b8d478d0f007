// What came out, and what was compared before.
let shown = null, drawnCharts = null;

const MARKS = {faster: "▲", slower: "▼", same: "=", uneven: "~"};

async function show(id, goThere = true) {
  const result = await call("show", {id});
  if (!result) return;
  shown = result;
  drawResult(result);
  nameNow();
  if (!goThere) return;
  go("result");
  askCharts([id]);
  say(result.verdicts.map(({text}) => text).join(". ") || "No verdict yet");
  loadReplays(id);
}

function askCharts(ids) {
  drawnCharts = ids;
  trigger("chart", {ids, dark: isDark()});
}
new MutationObserver(() => drawnCharts && ["result", "over"].includes(root.dataset.view) && askCharts(drawnCharts))
  .observe(document.body, {attributes: true, attributeFilter: ["class"]});

function drawResult(result) {
  $(".hs-c-head h2").textContent = `${result.target} · ${result.when}`;
  const actions = [];
  if (result.left) actions.push(button(`Continue: ${result.left} of ${result.total} runs left`, "hs-primary hs-c-continue", () => goOn(result.id)));
  if (result.done) actions.push(exportMenu(result));
  $(".hs-c-actions").replaceChildren(...actions);
  const verdicts = result.verdicts.map(({text, outcome}) => {
    const line = make("li", "hs-c-verdict hs-c-is-" + outcome), mark = make("span", "hs-c-mark", MARKS[outcome]);
    mark.setAttribute("aria-hidden", "true");
    line.append(mark, make("span", "", text));
    return line;
  });
  if (!verdicts.length) verdicts.push(make("li", "hs-c-verdict", result.done ? "Nothing to set against plain yet." : "No run was made."));
  for (const words of new Set(result.audit.filter(({words}) => words.startsWith("Sampled")).map(({words}) => words))) {
    verdicts.push(make("li", "hs-c-verdict hs-c-plainly", words));
  }
  for (const {name} of result.audit.filter(({bug}) => bug)) {
    verdicts.push(make("li", "hs-c-verdict hs-c-bug", `${name}: an output is DIFFERENT from plain's. That is a bug.`));
  }
  $(".hs-c-verdicts").replaceChildren(...verdicts);
  fill(".hs-c-by-column", true, () => table(result.table.names, result.table.rows));
  fill(".hs-c-by-kind", result.kinds, drawKinds);
  fill(".hs-c-by-position", result.positions, ({names, rows}) => table(names, rows));
  fill(".hs-c-failures", result.failed.length, () => table(
    ["column", "prompt", "run", "why"], result.failed.map(({column, prompt, repeat, why}) => [column, prompt, String(repeat), why])));
  $(".hs-c-audit").hidden = !result.audit.length;
  $(".hs-c-audit > div").replaceChildren(...result.audit.map(drawAudit));
  $(".hs-c-facts dl").replaceChildren(...result.facts.flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)]));
}

function fill(selector, value, draw) {
  $(selector).hidden = !value;
  if (value) $(selector + " .hs-c-scroll").replaceChildren(draw(value));
}

function drawKinds({names, rows}) {
  return table(["", ...names], rows.map(({name, cells}) => [name, ...cells]), ({gain, words, more}) => {
    const cell = make("td", "hs-c-cell");
    cell.append(make("b", "", words), make("small", "", more));
    if (gain !== null) {
      cell.classList.add(gain >= 1 ? "hs-c-up" : "hs-c-down");
      cell.style.setProperty("--far", Math.min(1, Math.abs(Math.log2(gain))));
    }
    return cell;
  });
}

function drawAudit({name, words, bug, parted}) {
  const box = make("div", bug ? "hs-c-audited hs-c-bug" : "hs-c-audited");
  const line = make("p");
  line.append(make("b", "", name), make("span", "", words));
  box.append(line);
  if (!parted.length) return box;
  const fold = make("details"), list = make("ul");
  fold.open = bug;
  fold.append(make("summary", "", "The evidence"), list);
  for (const one of parted) {
    const item = make("li", one.bug ? "hs-c-bug" : "");
    item.append(make("b", "", one.verdict), make("span", "", ` ${one.where}: plain has `), make("code", "", one.plain),
      make("span", "", ", this has "), make("code", "", one.this), make("span", "", `; ${one.gap}`));
    list.append(item);
  }
  box.append(fold);
  return box;
}

// ---- export -------------------------------------------------------------------------------------------------

function exportMenu({id, charts}) {
  const menu = make("details", "hs-c-export"), list = make("div", "hs-c-menu");
  menu.append(make("summary", "hs-quiet", "Export"), list);
  const item = (words, fields) => list.append(button(words, "hs-link", async () => {
    menu.open = false;
    const file = await call("export", {id, ...fields});
    if (file) save(file);
  }));
  for (const [kind, words] of [["json", "JSON: runs and summary"], ["csv", "CSV: one line a run"], ["md", "Markdown: the tables"]]) item(words, {kind});
  for (const chart of charts) for (const kind of ["png", "svg"]) item(`Chart “${chart}” as ${kind.toUpperCase()}`, {kind, chart});
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && menu.open) (menu.open = false), menu.firstChild.focus();
  });
  return menu;
}
document.addEventListener("click", (event) => {
  const menu = $(".hs-c-export[open]");
  if (menu && !menu.contains(event.target)) menu.open = false;
});

function save({name, media, base64}) {
  const bytes = Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([bytes], {type: media}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// ---- the past -----------------------------------------------------------------------------------------------

async function goOn(id) {
  if (await call("go_on", {id})) follow();
}

async function openPast() {
  const answer = await call("past");
  if (!answer) return;
  drawPast(answer.entries);
  go("past");
}

function drawPast(entries) {
  const chosen = new Set(), lay = $(".hs-c-lay");
  lay.disabled = true;
  lay.onclick = () => layOver([...chosen]);
  $(".hs-c-entries").replaceChildren(...entries.map((entry) => {
    const row = make("li", "hs-c-card hs-c-entry"), box = make("input"), words = make("div", "hs-c-entry-words");
    Object.assign(box, {type: "checkbox", disabled: !entry.done});
    box.setAttribute("aria-label", `Choose the comparison of ${entry.when} to lay it over another`);
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(entry.id);
      else chosen.delete(entry.id);
      lay.disabled = chosen.size < 2;
    });
    words.append(make("b", "", `${entry.target} · ${entry.when}`), make("span", "", entry.columns.join(" · ")),
      make("span", "hs-c-hint", `${entry.machine} · ${entry.left ? `${entry.done} of ${entry.total} runs, stopped` : `${entry.total} runs`}`));
    const acts = make("div", "hs-c-entry-acts");
    acts.append(button("Open", "hs-quiet hs-c-open", () => show(entry.id)));
    if (entry.left) acts.append(button("Continue", "hs-quiet", () => goOn(entry.id)));
    acts.append(button("Delete", "hs-quiet hs-c-delete-it", () => askDelete(entry)));
    row.append(box, words, acts);
    return row;
  }));
  if (!entries.length) $(".hs-c-entries").append(make("li", "hs-c-hint", "Nothing has been compared yet."));
}

function askDelete(entry) {
  const dialog = $(".hs-c-delete");
  dialog.querySelector("p").textContent = `${entry.target} of ${entry.when}, with its ${entry.done} runs. This can't be undone.`;
  $(".hs-c-keep").onclick = () => dialog.close();
  $(".hs-c-drop").onclick = async () => {
    dialog.close();
    const answer = await call("remove", {id: entry.id});
    if (!answer) return;
    if (shown?.id === entry.id) shown = null;
    nameNow();
    drawPast(answer.entries);
  };
  dialog.showModal();
}

async function layOver(ids) {
  const answer = await call("lay_over", {ids});
  if (!answer) return;
  const rows = answer.results.flatMap((result) => result.table.rows.map((row) => [`${row[0]} · ${result.id}`, ...row.slice(1), result.target, result.machine]));
  $(".hs-c-over .hs-c-scroll").replaceChildren(table([...answer.results[0].table.names, "target", "machine"], rows));
  go("over");
  askCharts(ids);
}
