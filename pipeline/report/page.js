"use strict";
// Draws the declared charts and lists the largest wins and losses. Text from data is written with textContent only.

const LISTED = 10;
const SHEET = 680; // pixels across a sheet of paper
const config = JSON.parse(document.getElementById("config").textContent);
const querySet = document.getElementById("query-set");
const views = [];

async function draw(figure) {
  const specification = JSON.parse(figure.querySelector("script").textContent);
  // ast: expressions are interpreted, so that the page's policy can forbid eval.
  const options = { actions: false, ast: true, config, defaultStyle: false, renderer: "svg" };
  const { view } = await vegaEmbed(figure.querySelector(".chart"), specification, options);
  views.push(view);
  if (figure.closest("#queries")) compare(figure, view, specification.datasets.rows);
}

/** Draws the figures of the chosen query set, each when it is first shown. */
function show() {
  for (const figure of document.querySelectorAll("figure")) {
    figure.hidden = figure.dataset.set && figure.dataset.set !== querySet.value;
    if (!figure.hidden) figure.drawn ??= draw(figure);
  }
}

/** Keeps counts, and the largest wins and losses of row A, below the chart. */
function compare(figure, view, queries) {
  const box = element("div", "", { ariaLive: "polite" });
  figure.append(box);
  function update() {
    const [a, b] = [view.signal("A"), view.signal("B")];
    const compared = queries.map((row) => ({ ...row, difference: row.values[a] - row.values[b] }));
    const wins = compared.filter((row) => row.difference > 0).sort((x, y) => y.difference - x.difference);
    const losses = compared.filter((row) => row.difference < 0).sort((x, y) => x.difference - y.difference);
    const mean = compared.reduce((sum, row) => sum + row.difference, 0) / compared.length;
    const counts = [wins.length, compared.length - wins.length - losses.length, losses.length];
    const [better, equal, worse] = counts.map((count) => count.toLocaleString("en-US"));
    const text = `A: ${better} better, ${equal} equal, ${worse} worse; mean difference ${signed(mean)}`;
    const lists = element("div", "", { className: "lists" });
    lists.append(list("Largest wins of A", wins), list("Largest losses of A", losses));
    box.replaceChildren(element("p", text), lists);
  }
  function list(title, rows) {
    const table = element("table");
    table.createCaption().textContent = rows.length ? title : `${title}: none`;
    for (const { id, query, values, difference } of rows.slice(0, LISTED)) {
      const [a, b] = ["A", "B"].map((name) => values[view.signal(name)].toFixed(4));
      const cell = element("td", query);
      cell.append(element("small", `${id}: A ${a}, B ${b}`));
      table.insertRow().append(cell, element("td", signed(difference)));
    }
    return table;
  }
  for (const name of ["A", "B"]) view.addSignalListener(name, update);
  update();
}

function element(name, text = "", properties = {}) {
  return Object.assign(document.createElement(name), { textContent: text, ...properties });
}

function signed(value) {
  return (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(4);
}

querySet.addEventListener("change", show);
window.addEventListener("beforeprint", () => views.forEach((view) => view.width(Math.min(view.width(), SHEET)).run()));
window.addEventListener("afterprint", () => window.dispatchEvent(new Event("resize")));
show();
