// Downloads: asks how far they are as long as any is under way, whichever view is shown, and more rarely out of sight.
const POLL_MS = 500, RARELY_MS = 3000;
let entries = [], following = false;

async function download(wanted, control) {
  const answer = await act(control, () => call("download", {wanted}));
  if (!answer) return false;
  say(`The download of ${wanted} has begun`);
  drawQueue(answer);
  follow();
  return true;
}

// A button that starts a download and then tells how it goes.
function fetcher({wanted, file, size, here, titles}) {
  const made = button("", "hs-quiet hs-m-fetch", () => download(wanted, made));
  made.titles = titles;
  made.dataset.words = size ? `Get ${size}` : "Get";
  made.setAttribute("aria-label", `Download ${file}${size ? `, ${size}` : ""}`);
  if (here) made.dataset.here = "yes";
  drawFetcher(made);
  return made;
}

function drawFetcher(made) {
  const mine = entries.filter(({title}) => made.titles.includes(title));
  const going = mine.find(({state}) => state === "running") ?? mine.find(({state}) => state === "waiting");
  const isHere = made.dataset.here || (mine.length === made.titles.length && mine.every(({state}) => state === "done"));
  made.textContent = going ? (going.state === "waiting" ? "Waiting" : `${Math.floor(100 * going.fraction)} %`) : isHere ? "Here" : made.dataset.words;
  made.disabled = Boolean(going || isHere);
}

async function follow() {
  if (following) return;
  following = true;
  for (;;) {
    const answer = await call("queue");
    if (!answer) break;
    drawQueue(answer);
    if (!answer.under_way) break;
    await new Promise((resolve) => setTimeout(resolve, isOpen && !document.hidden ? POLL_MS : RARELY_MS));
  }
  following = false;
}

function drawQueue(answer) {
  const before = new Map(entries.map(({id, state}) => [id, state]));
  entries = answer.entries;
  const list = $(".hs-m-queue"), drawn = new Map([...list.children].map((line) => [line.dataset.id, line]));
  const lines = entries.map((entry) => drawEntry(drawn.get(entry.id) ?? newEntry(entry), entry));
  if (!lines.length) lines.push(make("li", "hs-c-hint", "Nothing has been downloaded yet."));
  for (const [place, line] of lines.entries()) if (list.children[place] !== line) list.insertBefore(line, list.children[place] ?? null);
  while (list.children.length > lines.length) list.lastChild.remove();
  $(".hs-m-badge").hidden = !answer.under_way;
  $(".hs-m-badge").textContent = answer.under_way;
  for (const made of $$(".hs-m-fetch")) drawFetcher(made);
  const changed = entries.filter(({id, state}) => before.has(id) && before.get(id) !== state);
  for (const {title, state, error} of changed) {
    if (state === "done" || state === "failed") say(state === "done" ? `${title} is here` : `${title} failed: ${error}`);
  }
  if (changed.some(({state}) => state === "done")) {
    hasPresets = false;
    look().then(() => {
      tellGenerate();
      if (root.dataset.view === "pairs" && target) chooseTarget(target, draft);
    });
  }
}

function newEntry({id}) {
  const line = make("li", "hs-c-card hs-m-entry"), words = make("div", "hs-m-file"), meter = make("progress");
  line.dataset.id = id;
  meter.max = 1;
  words.append(make("b"), make("small", "hs-m-step"), make("small", "hs-m-moved"), make("p", "hs-m-reason"));
  line.append(words, meter, make("div", "hs-m-acts"));
  return line;
}

const STATES = {waiting: "Waiting", done: "Done", failed: "Failed", cancelled: "Cancelled"};

function drawEntry(line, entry) {
  const {title, state, step, words, fraction, error} = entry, meter = line.querySelector("progress");
  const texts = {b: title, ".hs-m-step": STATES[state] ?? step, ".hs-m-moved": state === "waiting" ? "" : words, ".hs-m-reason": error};
  for (const [selector, text] of Object.entries(texts)) {
    const node = line.querySelector(selector);
    if (node.textContent !== text) node.textContent = text;
  }
  meter.hidden = state === "done";
  meter.value = fraction;
  meter.setAttribute("aria-label", `${title}: ${words}`);
  if (line.dataset.state !== state) {
    const hadFocus = line.contains(document.activeElement);
    line.dataset.state = state;
    line.querySelector(".hs-m-acts").replaceChildren(...actsOf(entry));
    if (hadFocus) line.querySelector("button")?.focus();
  }
  return line;
}

function actsOf({id, title, state, path}) {
  const change = (name) => async () => {
    showProblem("");
    const answer = await call(name, {id});
    if (answer) drawQueue(answer), follow();
  };
  const acts = {waiting: ["cancel"], running: ["cancel"], done: ["forget"], failed: ["retry", "forget"], cancelled: ["retry", "forget"]}[state];
  const made = acts.map((name) => button(name[0].toUpperCase() + name.slice(1), name === "retry" ? "hs-primary" : "hs-quiet", change(name)));
  if (path) made.unshift(
    button("Use as target", "hs-quiet", () => useOnGenerate({target: path})),
    button("Drafts for it", "hs-quiet", async () => (await look(), openPairs(path))));
  for (const one of made) one.setAttribute("aria-label", `${one.textContent}: ${title}`);
  return made;
}

go("disk");
follow();
// The files are looked at whenever the tab is opened: other programs change them.
let isOpen = false;
new ResizeObserver(() => {
  const wasOpen = isOpen;
  isOpen = $(".hs-m-bar").getClientRects().length > 0;
  if (isOpen && !wasOpen) look(), follow();
}).observe($(".hs-m-bar"));
