"use strict";
(() => {
  const data = JSON.parse(document.getElementById("viewer-data").textContent);
  const at = (id) => document.getElementById(id);
  const item = at("v-item"), left = at("v-left"), right = at("v-right");

  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const options = (select, names) =>
    names.forEach((name, place) => select.add(new Option(name, place)));

  // Spaces and line ends are shown, otherwise two candidates may look the same.
  const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");

  const common = (a, b) => {
    let n = 0;
    while (n < a.length && n < b.length && a[n] === b[n]) n += 1;
    return n;
  };

  function body(entry, other, fork) {
    const box = make("div", "response");
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "response");
    if (entry.pieces) {
      if (entry.from > 0) box.append(make("span", "same", `… ${entry.from} tokens before\n`));
      const cut = fork === null ? entry.pieces.length : fork - entry.from;
      box.append(make("span", "same", entry.pieces.slice(0, cut).join("")));
      if (fork !== null && cut < entry.pieces.length) {
        box.append(make("mark", "", entry.pieces[cut] || "␄"));
        box.append(make("span", "", entry.pieces.slice(cut + 1).join("")));
      } else if (fork !== null) {
        box.append(make("mark", "", fork >= entry.n ? "(ends here)" : "(outside of what is kept here)"));
      }
      const rest = entry.n - entry.from - entry.pieces.length;
      if (rest > 0) box.append(make("span", "same", `\n… ${rest} more tokens`));
      return box;
    }
    const cut = fork === null ? entry.text.length : common(entry.text, other.text);
    box.append(make("span", "same", entry.text.slice(0, cut)));
    if (fork !== null) {
      box.append(make("mark", "", entry.text.slice(cut, cut + 1) || "(ends here)"));
      box.append(make("span", "", entry.text.slice(cut + 1)));
    }
    return box;
  }

  function candidates(entry, fork, side) {
    const rows = fork === null ? null : entry.tops[fork];
    if (!rows || rows.length === 0) return null;
    const scroll = make("div", "scroll");
    const table = make("table");
    table.append(make("caption", "", `Candidates at token ${fork}, ${side}`));
    const head = table.createTHead().insertRow();
    ["token", "id", "logprob", "probability"].forEach((name, place) => {
      const cell = make("th", place ? "n" : "", name);
      cell.scope = "col";
      head.append(cell);
    });
    const lines = table.createTBody();
    const chosen = entry.ids[fork - entry.from];
    for (const [id, text, logprob] of rows) {
      const row = lines.insertRow();
      if (id === chosen) row.className = "chosen";
      const name = make("th");
      name.scope = "row";
      name.append(make("code", "", text ? visible(text) : "–"));
      if (id === chosen) name.append(" ◂");
      row.append(name, make("td", "n", id), make("td", "n", logprob === null ? "−∞" : logprob.toFixed(4)));
      const share = Math.exp(logprob ?? -Infinity), cell = make("td", "n", `${(100 * share).toFixed(2)} % `);
      const bar = make("span", "bar");
      bar.style.width = `${(4 * share).toFixed(3)}rem`;
      cell.append(bar);
      row.append(cell);
    }
    scroll.append(table);
    return scroll;
  }

  function side(target, name, entry, other, fork) {
    target.replaceChildren(make("h3", "", name));
    if (!entry) {
      target.append(make("p", "words", "This run has no response to this item."));
      return;
    }
    const facts = [`${entry.n} tokens`, entry.finish === "length" ? "cut by the token limit" : entry.finish];
    if (entry.outcome) facts.push(entry.outcome.replaceAll("_", " "));
    target.append(make("p", "note", facts.filter(Boolean).join(", ")));
    target.append(body(entry, other || entry, fork));
    const table = candidates(entry, fork, name);
    if (table) target.append(table);
    else if (fork !== null && fork < entry.n)
      target.append(make("p", "note", "No candidates were stored at the fork."));
  }

  function draw() {
    const chosen = data.items[item.value];
    const a = chosen.responses[left.value], b = chosen.responses[right.value];
    const fork = a && b ? a.forks[right.value] : null;
    at("v-said").textContent = !a || !b ? "Only one side has a response."
      : fork === null ? `The two responses are the same: ${a.n} tokens.`
      : `The two responses part at token ${fork} (counted from 0).`;
    side(at("v-a"), data.runs[left.value], a, b, fork);
    side(at("v-b"), data.runs[right.value], b, a, fork);
  }

  function move(step) {
    const count = data.items.length;
    item.value = (Number(item.value) + step + count) % count;
    draw();
  }

  options(item, data.items.map((entry) => entry.id));
  options(left, data.runs);
  options(right, data.runs);
  const first = data.items[0].responses;
  const other = first[0] ? first[0].forks.findIndex((fork) => fork !== null) : -1;
  right.value = other > 0 ? other : Math.min(1, data.runs.length - 1);
  for (const select of [item, left, right]) select.addEventListener("change", draw);
  at("v-back").addEventListener("click", () => move(-1));
  at("v-next").addEventListener("click", () => move(1));
  draw();
})();
