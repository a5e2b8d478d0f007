// What Auto may gain with a pair: each kind of task with the estimate, and what was measured once there is that.
function outlookRows({rows, note}) {
  const table = make("table", "hs-outlook-rows"), body = make("tbody");
  for (const [kind, expected, measured] of rows) {
    const row = make("tr");
    row.append(Object.assign(make("th", "", kind), {scope: "row"}), make("td", "", expected), make("td", "hs-outlook-measured", measured));
    body.append(row);
  }
  table.append(body);
  return note ? [table, make("p", "", note)] : [table];
}
