// The rounds of an answer as blocks: as high as what was drafted, by who proposed it and what of it was kept.
// The line below counts them, or tells of the one that is pointed at or stepped to.
const ROUND_SOURCES = {none: "plain", l: "looked up", m: "drafted", both: "both"};
const MOST_BLOCKS = 300, MERGED_AT_ONCE = 100; // older rounds become one block

const counted = (n, one) => `${n} ${n === 1 ? one : one + "s"}`;
const sourceOf = (round) => round.l && round.m ? "both" : round.l ? "l" : round.m ? "m" : "none";

class StripView {
  constructor() {
    this.rounds = [];
    this.longest = 0; // of the drafts
    this.merged = 0; // how many of the oldest rounds the first block stands for
    this.blocks = [];
    this.root = make("div", "hs-rounds");
    this.row = make("div", "hs-strip");
    this.words = make("p", "hs-round-words");
    this.row.tabIndex = 0;
    this.row.setAttribute("role", "group");
    this.row.setAttribute("aria-label", "Rounds of this answer. The arrow keys step through them.");
    this.earlier = make("i", "hs-earlier");
    this.root.hidden = true;
    this.root.append(this.row, this.words);
    this.row.addEventListener("mouseover", ({target}) => target !== this.row && this.show(target));
    this.row.addEventListener("mouseleave", () => this.show(null));
    this.row.addEventListener("focus", () => this.words.setAttribute("aria-live", "polite"));
    this.row.addEventListener("blur", () => {
      this.words.removeAttribute("aria-live");
      this.show(null);
    });
    this.row.addEventListener("keydown", (event) => this.step(event));
  }

  add(code, index, position, source) {
    const round = (this.rounds[index] ??= {index, own: false, drafted: 0, accepted: 0, l: 0, m: 0, keptL: 0, why: ""});
    if (position === null) round.own = true;
    else {
      round.drafted += 1;
      round[source] += 1;
      round.accepted += code === "a";
      round.keptL += code === "a" && source === "l";
      this.longest = Math.max(this.longest, round.drafted);
    }
    this.dirtyFrom = Math.min(this.dirtyFrom ?? index, index);
  }

  explain(index, why) {
    if (this.rounds[index]) this.rounds[index].why = why;
  }

  flush() {
    if (this.dirtyFrom === undefined) return;
    const most = this.merged + MOST_BLOCKS, n = this.rounds.length;
    if (n > most) this.merge(this.merged + Math.ceil((n - most) / MERGED_AT_ONCE) * MERGED_AT_ONCE);
    for (let i = Math.max(this.dirtyFrom, this.merged); i < n; i++) this.draw(this.rounds[i]);
    const longest = this.longest;
    this.root.style.setProperty("--unit", longest > 16 ? "2px" : longest > 8 ? "3px" : longest > 4 ? "5px" : "7px");
    this.root.style.setProperty("--longest", longest);
    this.dirtyFrom = undefined;
    this.root.hidden = false;
    this.hasGrown = true;
    if (!this.shown) this.count();
  }

  showLatest() {
    if (!this.hasGrown) return;
    this.hasGrown = false;
    const isRead = this.shown || this.row.matches(":hover");
    if (!isRead) this.row.scrollLeft = this.row.scrollWidth;
  }

  merge(upTo) {
    for (let i = this.merged; i < upTo; i++) this.blocks[i]?.remove();
    this.merged = upTo;
    this.row.prepend(this.earlier);
  }

  draw(round) {
    if (!round) return;
    let block = this.blocks[round.index];
    if (!block) {
      block = this.blocks[round.index] = make("i");
      block.round = round;
      this.row.append(block);
    }
    block.className = "from-" + sourceOf(round);
    const sizes = {l: round.keptL, m: round.accepted - round.keptL, x: round.drafted - round.accepted};
    for (const [name, size] of Object.entries(sizes)) block.style.setProperty("--" + name, size);
  }

  // The line while no round is pointed at: each source with its sign, and how many rounds it had.
  count() {
    const counts = {};
    let drafted = 0, accepted = 0;
    for (const round of this.rounds) {
      if (!round) continue;
      counts[sourceOf(round)] = (counts[sourceOf(round)] ?? 0) + 1;
      drafted += round.drafted;
      accepted += round.accepted;
    }
    const parts = Object.entries(ROUND_SOURCES).filter(([source]) => counts[source]).map(([source, words]) => [source, `${counts[source]} ${words}`]);
    if (drafted > accepted) parts.push(["x", `${drafted - accepted} of ${counted(drafted, "drafted token")} not kept`]);
    this.words.replaceChildren(counted(this.rounds.length, "round") + ":", ...parts.map(([source, words]) => {
      const part = make("span", "hs-round-part", words);
      part.prepend(make("i", "hs-sign from-" + source));
      return part;
    }));
  }

  show(block) {
    this.shown?.classList.remove("hs-at");
    this.shown = block;
    if (!block) return this.rounds.length && this.count();
    block.classList.add("hs-at");
    this.words.textContent = block.round ? this.describe(block.round) : this.describeEarlier();
  }

  describe({index, own, drafted, accepted, l, m, why}) {
    const proposed = [l && `${l} looked up`, m && `${m} drafted`].filter(Boolean).join(" and ");
    const kept = drafted ? `${proposed}, ${accepted} of them accepted` : "nothing drafted";
    return `Round ${index + 1}: ${kept}, ${counted(accepted + own, "token")}.` + (why ? ` ${why[0].toUpperCase()}${why.slice(1)}.` : "");
  }

  describeEarlier() {
    const past = this.rounds.slice(0, this.merged).filter(Boolean);
    const total = (key) => past.reduce((sum, round) => sum + round[key], 0);
    return `Rounds 1 to ${this.merged}: ${total("drafted")} proposed, ${total("accepted")} of them accepted, ${counted(total("accepted") + total("own"), "token")}.`;
  }

  step(event) {
    const blocks = [...this.row.children], at = blocks.indexOf(this.shown);
    const moves = {ArrowRight: at + 1, ArrowLeft: at < 0 ? blocks.length - 1 : at - 1, Home: 0, End: blocks.length - 1};
    if (event.key === "Escape") return this.show(null);
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const block = blocks[Math.max(0, Math.min(blocks.length - 1, moves[event.key]))];
    block.scrollIntoView({block: "nearest", inline: "nearest"});
    this.show(block);
  }
}
