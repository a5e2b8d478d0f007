// A device's memory as a bar. What each part is stands in a tip, by a colour and a pattern.
function barOf({name, words, over, free, parts}, index) {
  const box = make("div", over ? "hs-memory-box hs-over hs-has-tip" : "hs-memory-box hs-has-tip");
  const line = make("div", "hs-memory-line"), bar = make("div", "hs-memory-bar"), tip = make("div", "hs-tip");
  line.append(make("span", "", name), make("span", "", words));
  for (const [what, share, part, meaning, sizes] of parts) {
    const piece = make("i", "hs-part-" + what), row = make("div", "hs-memory-part"), text = make("span");
    piece.style.width = share + "%";
    bar.append(piece);
    text.append(make("b", "", part), make("span", "", meaning), make("span", "", sizes));
    row.append(make("i", "hs-part-" + what), text);
    tip.append(row);
  }
  if (over) {
    const end = make("em");
    end.style.left = free + "%";
    bar.append(end);
  }
  tip.setAttribute("role", "tooltip");
  tip.id = "hs-memory-tip-" + index;
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", `${name}: ${words}`);
  box.setAttribute("aria-describedby", tip.id);
  box.append(line, bar, tip);
  return box;
}
