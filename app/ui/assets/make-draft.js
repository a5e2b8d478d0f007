// Make a draft: the form asks what a copy would be; work under way is followed until it is over.
const $ = (selector) => element.querySelector(selector);
const POLL_MS = 300, WAIT_MS = 350;
let asked = 0, polling = false, last = null;

// What the server answers, or null where it said an error, which is then shown.
async function call(act, fields = {}) {
  let answer;
  try {
    answer = JSON.parse(await server.drafts({do: act, ...fields}));
  } catch {
    answer = {error: "Headstart does not answer. If it has ended, start it again and reload this page."};
  }
  if (answer.error && act !== "plan") showProblem(answer.error);
  return answer.error && act !== "plan" ? null : answer;
}

function showProblem(words) {
  $(".hs-d-problem").hidden = !words;
  $(".hs-d-problem p").textContent = words;
}

const target = $(".hs-d-target select"), makes = $(".hs-d-make [type=submit]"), searches = $(".hs-d-search [type=submit]");
const fields = () => ({target: target.value, type: $(".hs-d-type").value, skip: $(".hs-d-skip").value, name: $(".hs-d-name").value});

function drawPlan(pairs) {
  $(".hs-d-plan").replaceChildren(...pairs.flatMap(([name, words, className]) => [make("dt", "", name), make("dd", className ?? "", words)]));
}

// Of several answers only that to the last question counts.
async function plan() {
  const mine = ++asked;
  makes.disabled = true;
  drawPlan([["", "Looking at the target"]]);
  await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
  if (mine !== asked) return;
  const found = await call("plan", fields());
  if (mine !== asked) return;
  if (found.error) return drawPlan([["", found.error, "hs-c-wrong"]]);
  $(".hs-d-name").placeholder = found.name;
  drawPlan([["It will be", `${found.words}, ${found.size}`], ["A drafted token", `costs about ${found.cost} of a plain one`]]);
  makes.disabled = polling;
}

async function begin() {
  const found = await call("begin", {target: target.value || document.querySelector("#target")?.value || ""});
  if (!found) return;
  target.replaceChildren(...found.targets.map(([id, words, problem]) => {
    const option = new Option(problem ? `${words}: ${problem}` : words, id);
    option.disabled = Boolean(problem);
    return option;
  }));
  target.value = found.target;
  if (!$(".hs-d-type").length) {
    $(".hs-d-type").append(new Option("Automatic", ""), ...found.types.map((name) => new Option(name, name)));
    $(".hs-d-minutes").value = found.minutes;
    $(".hs-d-table thead tr").replaceChildren(...found.heading.map((words) => Object.assign(make("th", "", words), {scope: "col"})));
  }
  plan();
}

function draw(news) {
  const work = $(".hs-d-work");
  work.hidden = !news.number;
  $(".hs-c-progress strong").textContent = news.title;
  $(".hs-c-left").textContent = news.over ? "" : news.step;
  $(".hs-c-meter").hidden = news.over;
  $(".hs-c-meter").value = news.total ? news.done / news.total : 0;
  $(".hs-d-stop").hidden = news.over;
  $(".hs-d-stop").disabled = news.stopping;
  const verdict = $(".hs-d-verdict p");
  if (verdict.textContent !== news.verdict) verdict.textContent = news.verdict;
  $(".hs-d-use").hidden = !news.kept;
  const key = JSON.stringify(news.rows);
  if (last?.key !== key) {
    $(".hs-d-table").hidden = $(".hs-d-legend").hidden = !news.rows.length;
    $(".hs-d-table tbody").replaceChildren(...news.rows.map(([name, ...cells]) => {
      const line = make("tr");
      line.append(Object.assign(make("th", "", name), {scope: "row"}), ...cells.map((words) => make("td", "", words)));
      return line;
    }));
  }
  last = {...news, key};
}

async function follow() {
  if (polling) return;
  polling = true;
  searches.disabled = makes.disabled = true;
  let news = null;
  do {
    news = await call("news");
    if (!news) break;
    draw(news);
    if (!news.over) await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  } while (!news.over);
  polling = searches.disabled = false;
  if (news?.failed) showProblem(news.failed[0].toUpperCase() + news.failed.slice(1) + ".");
  if (news?.kept) document.dispatchEvent(new CustomEvent("headstart-pick", {detail: {picks: {}, values: {}}}));
  plan();
}

async function start(act, more) {
  showProblem("");
  if (await call(act, more)) {
    follow();
    $(".hs-d-stop").focus();
  }
}

$(".hs-d-make").addEventListener("submit", (event) => (event.preventDefault(), start("make", fields())));
$(".hs-d-search").addEventListener("submit", (event) => {
  event.preventDefault();
  start("search", {target: target.value, minutes: $(".hs-d-minutes").value});
});
$(".hs-d-stop").addEventListener("click", () => {
  $(".hs-d-stop").disabled = true;
  call("halt");
});
$(".hs-d-use").addEventListener("click", () => {
  const picks = {preset: "", target: last.target, mode: "draft", draft: last.kept};
  document.dispatchEvent(new CustomEvent("headstart-pick", {detail: {picks, values: {}}}));
  document.querySelector("#tabs [data-tab-id=generate]").click();
  document.querySelector(".hs-input")?.focus({preventScroll: true});
});
for (const field of [target, $(".hs-d-type")]) field.addEventListener("change", plan);
for (const field of [$(".hs-d-skip"), $(".hs-d-name")]) field.addEventListener("input", plan);

// The tab asks when it is first seen, and again each time, since files come and go.
new IntersectionObserver((entries) => {
  if (!entries.some((entry) => entry.isIntersecting)) return;
  begin();
  call("news").then((news) => {
    if (!news?.number) return;
    draw(news);
    if (!news.over) follow();
  });
}).observe($(".hs-d-lead"));
