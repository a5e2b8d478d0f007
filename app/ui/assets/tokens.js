// One answer's tokens in the page: spans, and the thinking fold. Text goes in by textContent alone.
const KINDS = {a: "accepted", c: "recovered", b: "bonus", t: "target", x: "rejected", d: "discarded"};
const SOURCES = {m: "the draft model", l: "prompt lookup"};

// Tokens after which an answer goes on in a block of its own, at the next line break: the browser lays out a block
// as a whole, and in a single one of thousands of tokens every new token would cost as much as all of them.
const LONG_PART = 80;

// A token outside the output must not break lines, so its white space is drawn.
const drawn = (text) => text.replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥");
const percent = (p) => (p === null ? null : p >= 0.9995 ? "100 %" : (100 * p).toFixed(1) + " %");

class AnswerView {
  constructor() {
    this.tokens = [];
    this.outputs = [];
    this.root = make("article", "hs-answer");
    this.text = make("div", "hs-text");
    this.text.tabIndex = 0;
    this.text.setAttribute("role", "group");
    this.text.setAttribute("aria-label", "Answer. The arrow keys step through its tokens.");
    this.status = make("div", "hs-status");
    this.strip = new StripView();
    this.foot = make("div", "hs-foot");
    this.root.append(this.text, this.status, this.strip.root, this.foot);
    this.into = this.part = this.text;
    this.fresh = document.createDocumentFragment();
  }

  setStatus(words, fraction) {
    this.status.textContent = words;
    if (fraction === null) return;
    const bar = make("progress");
    bar.value = fraction;
    bar.setAttribute("aria-label", words);
    this.status.append(bar);
  }

  addToken(code, text, round, position, source, targetProb, draftProb) {
    const isOutput = code !== "x" && code !== "d";
    const node = make("span", "k-" + code, isOutput ? text : drawn(text));
    const token = {code, text, round, position, source, targetProb, draftProb, node, at: this.tokens.length};
    node.token = token;
    this.tokens.push(token);
    if (isOutput) this.outputs.push(token);
    if (this.afterThinking && isOutput) this.afterThinking = !text.trim();
    (this.afterThinking ? this.foldBody : this.fresh).append(node);
    this.strip.add(code, round, position, source);
  }

  flush() {
    if (this.fresh.childNodes.length) {
      this.status.textContent = "";
      if (this.into === this.text) this.appendInParts([...this.fresh.childNodes]);
      else this.into.append(this.fresh);
    }
    this.strip.flush();
  }

  appendInParts(nodes) {
    for (const node of nodes) {
      this.part.append(node);
      const breaks = node.token.text.endsWith("\n") && node.textContent === node.token.text;
      if (!breaks || this.part.childNodes.length < LONG_PART) continue;
      if (this.part === this.text) {
        this.part = make("div");
        this.part.append(...this.text.childNodes);
        this.text.append(this.part);
      }
      this.text.append((this.part = make("div")));
    }
  }

  // The thinking part: what lies from output token `index` on moves into a fold.
  openThinking(index) {
    this.flush();
    this.fold = make("details", "hs-thinking");
    this.fold.append(make("summary", "", "Thinking"));
    const body = (this.foldBody = make("div", "hs-thinking-text"));
    this.fold.append(body);
    const first = this.outputs[index]?.node ?? null;
    this.text.insertBefore(this.fold, first);
    for (let node = first; node; ) {
      const next = node.nextSibling;
      body.append(node);
      node = next;
    }
    this.into = body;
  }

  // Blank tokens right after it stay inside, so that the answer begins where its text does.
  closeThinking(index) {
    this.flush();
    const first = this.outputs.slice(index).find((token) => token.text.trim());
    this.afterThinking = !first;
    for (let node = first?.node; node; ) {
      const next = node.nextSibling;
      this.text.append(node);
      node = next;
    }
    this.into = this.text;
    this.fold.firstChild.textContent = `Thinking (${index} tokens)`;
  }

  fail(words, log) {
    const box = make("div", "hs-failed");
    box.setAttribute("role", "alert");
    box.append(make("p", "", words));
    if (log) {
      const more = make("details");
      more.append(make("summary", "", "The end of llama.cpp's log"), make("pre", "", log));
      box.append(more);
    }
    this.root.insertBefore(box, this.foot);
  }

  end(summary, note) {
    this.status.textContent = "";
    this.summary = [note && note[0].toUpperCase() + note.slice(1), summary].filter(Boolean).join(" · ");
    this.foot.append(make("span", "hs-summary", this.summary));
  }

  plainText() {
    const answer = this.outputs.filter((token) => !token.node.closest(".hs-thinking"));
    return answer.map((token) => token.text).join("").trim();
  }

  describe(token) {
    const round = this.strip.rounds[token.round];
    const rows = [["Round", String(token.round + 1)]];
    if (token.position !== null) {
      rows.push(["Place in the draft", `${token.position + 1} of ${round.drafted}`]);
      rows.push(["Proposed by", SOURCES[token.source] ?? "—"]);
    } else rows.push(["Chosen by", "the target"]);
    const untested = token.code === "d" ? "not tested" : "—";
    rows.push(["Target's probability", percent(token.targetProb) ?? untested]);
    if (token.position !== null) {
      rows.push(["Draft's probability", percent(token.draftProb) ?? (token.source === "l" ? "looked up" : "—")]);
    }
    return rows;
  }
}
