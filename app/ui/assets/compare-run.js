// A comparison under way: asks for what is new four times a second, whichever view is shown.
const POLL_MS = 250;
let live = null;

const about = (s) => s < 90 ? `about ${Math.max(1, Math.round(s))} s left` : `about ${Math.round(s / 60)} min left`;

function drawNews(news) {
  const {done, total, remaining_s: left} = news;
  $(".hs-c-done").textContent = total ? `${done} of ${total} runs` : news.words;
  $(".hs-c-left").textContent = news.stopping ? "Stopping" : !total ? "" : left === null ? "How long it takes shows after the first run" : done < total ? about(left) : "";
  $(".hs-c-meter").value = total ? done / total : 0;
  $(".hs-c-what").textContent = news.column ? `${news.column} · ${news.prompt}` : "";
  $(".hs-c-words").textContent = total ? news.words : "";
  $(".hs-c-stop").disabled = news.stopping;
  if (!live || live.number !== news.number) $(".hs-c-rows tbody").replaceChildren();
  if (!live || live.number !== news.number || live.run !== news.run) {
    live = {view: new AnswerView()};
    $(".hs-c-live").replaceChildren(live.view.root);
  }
  Object.assign(live, {number: news.number, run: news.run});
  for (const line of news.lines) live.view.addToken(...JSON.parse(line));
  live.view.flush();
  if (news.lines.length) $(".hs-c-live").scrollTop = $(".hs-c-live").scrollHeight;
  for (const row of news.rows) {
    const line = make("tr", row.error ? "hs-c-wrong" : "");
    line.append(make("td", "", row.column), make("td", "", row.prompt), make("td", "", String(row.repeat)), make("td", "", row.error || row.speed || "–"));
    $(".hs-c-rows tbody").prepend(line);
  }
}

async function follow() {
  if (polling) return;
  polling = true;
  let seen = {}, news = null;
  nameNow();
  go("running");
  $(".hs-c-stop").focus({preventScroll: true});
  for (;;) {
    news = await call("news", {seen});
    if (!news || news.number === undefined) break;
    drawNews(news);
    seen = {number: news.number, run: news.run, at: news.at, row: news.row};
    if (news.over) break;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  polling = false;
  const wasWatched = root.dataset.view === "running";
  if (news?.id && news.row) await show(news.id, wasWatched);
  else if (wasWatched) go("setup");
  nameNow();
  if (news?.error) {
    showProblem(news.error[0].toUpperCase() + news.error.slice(1));
    say(news.error);
  }
  plan();
}

$(".hs-c-stop").addEventListener("click", () => {
  $(".hs-c-stop").disabled = true;
  call("halt");
});
