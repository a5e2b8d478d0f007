// The columns at their recorded pace. All runs of a comparison come once; the rest happens here.
const CODES = Object.fromEntries(Object.entries(KINDS).map(([code, name]) => [name, code]));
const still = matchMedia("(prefers-reduced-motion: reduce)");
let runs = null, lanes = [], now = 0, end = 0, playing = null;

async function loadReplays(id) {
  runs = null;
  const answer = await call("replays", {id});
  if (!answer || shown?.id !== id) return;
  runs = answer;
  $(".hs-c-replay").hidden = !runs.runs.length;
  options($(".hs-c-prompt"), runs.prompts.map(([name]) => [name, name]), runs.prompts[0]?.[0]);
  chooseReplay();
}

function chooseReplay() {
  pause();
  const prompt = $(".hs-c-prompt").value, of = runs.runs.filter((run) => run.prompt === prompt);
  const repeats = [...new Set(of.map((run) => run.repeat))].sort((a, b) => a - b);
  const repeat = repeats.includes(Number($(".hs-c-repeat").value)) ? Number($(".hs-c-repeat").value) : repeats[0];
  options($(".hs-c-repeat"), repeats.map((one) => [String(one), String(one + 1)]), String(repeat));
  $(".hs-c-asked").textContent = runs.prompts.find(([name]) => name === prompt)?.[1] ?? "";
  lanes = runs.columns.flatMap(([name, label]) => {
    const run = of.find((one) => one.column === name && one.repeat === repeat);
    return run ? [lane(label, run)] : [];
  });
  end = Math.max(0, ...lanes.map(({rounds}) => rounds.at(-1)[0]));
  $(".hs-c-stage").replaceChildren(...lanes.map(({root}) => root));
  $(".hs-c-scrub").max = end;
  seek(end);
}

function lane(label, {rounds, speed}) {
  const root = make("article", "hs-c-lane"), head = make("div", "hs-c-lane-head"), text = make("div", "hs-text");
  const count = make("span", "hs-c-count"), clock = make("span", "hs-c-lane-clock");
  head.append(make("b", "", label), count, clock);
  text.tabIndex = 0;
  text.setAttribute("role", "group");
  text.setAttribute("aria-label", `Replay of ${label}`);
  root.append(head, text);
  return {root, text, count, clock, rounds, speed, at: 0, tokens: 0};
}

function seek(t) {
  now = Math.max(0, Math.min(end, t));
  for (const one of lanes) {
    if (one.at && one.rounds[one.at - 1][0] > now) Object.assign(one, {at: 0, tokens: 0}), one.text.replaceChildren();
    const fresh = document.createDocumentFragment();
    for (; one.at < one.rounds.length && one.rounds[one.at][0] <= now + 1e-6; one.at++) {
      for (const [text, kind] of one.rounds[one.at][1]) {
        const isOutput = kind !== "rejected" && kind !== "discarded";
        fresh.append(make("span", "k-" + CODES[kind], isOutput ? text : drawn(text)));
        one.tokens += isOutput;
      }
    }
    if (fresh.childNodes.length) {
      one.text.append(fresh);
      one.text.scrollTop = one.text.scrollHeight;
    }
    const last = one.rounds.at(-1)[0], isOver = one.at === one.rounds.length;
    one.count.textContent = `${one.tokens} ${one.tokens === 1 ? "token" : "tokens"}`;
    one.clock.textContent = isOver ? `done in ${last.toFixed(1)} s · ${one.speed} tokens/s` : `${now.toFixed(1)} s`;
    one.root.classList.toggle("hs-c-lane-over", isOver);
  }
  $(".hs-c-scrub").value = now;
  $(".hs-c-scrub").setAttribute("aria-valuetext", `${now.toFixed(1)} of ${end.toFixed(1)} seconds`);
  $(".hs-c-clock").textContent = `${now.toFixed(1)} / ${end.toFixed(1)} s`;
}

function play() {
  if (now >= end) seek(0);
  let before = performance.now();
  const mine = (playing = {});
  $(".hs-c-play").textContent = "Pause";
  const step = () => {
    if (playing !== mine) return;
    const at = performance.now(), rate = Number($(".hs-c-rate :checked").value);
    seek(now + ((at - before) / 1000) * rate);
    before = at;
    if (now >= end) pause();
    else if (still.matches) setTimeout(step, 500);
    else requestAnimationFrame(step);
  };
  step();
}

function pause() {
  playing = null;
  $(".hs-c-play").textContent = "Play";
}

$(".hs-c-play").addEventListener("click", () => (playing ? pause() : play()));
$(".hs-c-scrub").addEventListener("input", (event) => (pause(), seek(Number(event.target.value))));
$(".hs-c-prompt").addEventListener("change", chooseReplay);
$(".hs-c-repeat").addEventListener("change", chooseReplay);

go("setup");
begin().then(async () => {
  const news = await call("news", {seen: {}});
  if (news && !news.over) follow();
});
