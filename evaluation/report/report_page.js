"use strict";
// Draws the charts of report_page.html as SVG. Texts from data are written with textContent and setAttribute only.

const report = JSON.parse(document.getElementById("data").textContent);
const COLOURS = { baselines: "blue", "our methods": "orange" };
const SEED_COLOURS = 6;

// --- elements

function node(name, attributes = {}, text = null) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function svgNode(parent, name, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

/** A labelled select in the controls of a section; `changed` is called with every new choice. */
function choice(section, name, title, changed) {
  const label = node("label", {}, title);
  const select = node("select", { id: `${section.id}-${name}`, autocomplete: "off" });
  select.addEventListener("change", changed);
  label.append(select);
  section.querySelector(".controls").append(label);
  return select;
}

/** Options as [value, text]; keeps the choice where it is still there, else takes `wanted`. */
function fill(select, options, wanted) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => node("option", { value }, text)));
  const values = options.map(([value]) => String(value));
  if (values.includes(before)) select.value = before;
  else if (values.includes(String(wanted))) select.value = String(wanted);
}

function legend(section, entries) {
  const box = section.querySelector(".legend");
  box.replaceChildren();
  for (const [text, draw] of entries) {
    const entry = node("span");
    draw(svgNode(entry, "svg", { viewBox: "0 -2 22 16", "aria-hidden": "true" }));
    entry.append(text);
    box.append(entry);
  }
}

// --- numbers

const whole = (number) => number.toLocaleString("en-US");
const signed = (number, digits = 4) => (number > 0 ? "+" : number < 0 ? "−" : "") + Math.abs(number).toFixed(digits);
const short = (number) => whole(Number(number.toPrecision(3)));

/** Round numbers that cover low..high in about `count` steps. */
function ticks(low, high, count) {
  const rough = (high - low || Math.abs(high) || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(first + 1, Math.ceil(high / step - 1e-9));
  return Array.from({ length: last - first + 1 }, (_, number) => Number(((first + number) * step).toPrecision(12)));
}

/** Decimals that tell neighbouring ticks apart. */
function decimals(values) {
  const text = values.map((one) => String(one).split(".")[1] || "");
  return Math.min(6, Math.max(...text.map((one) => one.length)));
}

const linear = (from, to, start, end) => (value) => start + ((value - from) / (to - from)) * (end - start);

// --- charts

const drawn = new Map(); // holder -> {width, draw}
const observer = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = drawn.get(target);
    if (chart && Math.abs(target.clientWidth - chart.width) > 1 && target.clientWidth > 0) show(target, chart.draw);
  }
});

/** Draws into a holder now, and again whenever its width changes: texts keep their size on a phone. */
function show(holder, draw, widest = Infinity) {
  hideTip();
  drawn.set(holder, { width: holder.clientWidth, draw });
  holder.replaceChildren();
  draw(holder, Math.max(240, Math.min(widest, holder.clientWidth)));
  observer.observe(holder);
}

// A sheet is narrower than a screen: drawn for its width, texts are not shrunk with the chart.
const SHEET = 680;
const sheet = (holder) => Number(holder.dataset.sheet) || SHEET;
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
window.addEventListener("beforeprint", () => drawn.forEach(({ draw }, holder) => show(holder, draw, sheet(holder))));
window.addEventListener("afterprint", () => drawn.forEach(({ draw }, holder) => show(holder, draw)));

/** An SVG with axes. x and y: {from, to, ticks, title, text, fine, log}; gives the scales and the plot's box. */
function frame(holder, width, height, label, x, y) {
  const svg = svgNode(holder, "svg", {
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": label,
    tabindex: 0,
  });
  const digits = decimals(y.ticks);
  const yText = y.text || ((value) => value.toFixed(digits));
  const widest = Math.max(...y.ticks.map((value) => yText(value).length));
  const box = { left: 14 + widest * 7, right: width - 14, top: 30, bottom: height - 40 };
  const of = x.log ? Math.log10 : Number;
  const across = linear(of(x.from), of(x.to), box.left, box.right);
  const sx = (value) => across(of(value));
  const sy = linear(y.from, y.to, box.bottom, box.top);
  for (const value of x.fine || []) {
    svgNode(svg, "line", { class: "grid fine", x1: sx(value), x2: sx(value), y1: box.top, y2: box.bottom });
  }
  for (const value of y.ticks) {
    svgNode(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: sy(value), y2: sy(value) });
    svgNode(svg, "text", { x: box.left - 8, y: sy(value) + 4, "text-anchor": "end" }, yText(value));
  }
  let free = -Infinity; // where the last text under the x axis ended
  for (const value of x.ticks) {
    if (x.log) svgNode(svg, "line", { class: "grid", x1: sx(value), x2: sx(value), y1: box.top, y2: box.bottom });
    const text = (x.text || whole)(value);
    const half = text.length * 3.5;
    const middle = Math.min(sx(value), width - half - 2);
    if (middle - half < free + 8) continue;
    svgNode(svg, "text", { x: middle, y: box.bottom + 17, "text-anchor": "middle" }, text);
    free = middle + half;
  }
  svgNode(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
  svgNode(svg, "text", { x: box.right, y: height - 6, "text-anchor": "end" }, x.title);
  svgNode(svg, "text", { x: 2, y: 12 }, y.title);
  return { svg, sx, sy, box };
}

function axis(low, high, count, title) {
  const steps = ticks(low, high, count);
  return { from: steps[0], to: steps[steps.length - 1], ticks: steps, title };
}

// --- tooltip

const tip = document.getElementById("tip");
let tellAgain = null; // puts the open tooltip to its point again

function hideTip() {
  tellAgain = null;
  tip.style.visibility = "hidden";
  for (const cursor of document.querySelectorAll(".cursor")) cursor.style.visibility = "hidden";
}

/** Points {x, y, text}: the nearest to the pointer, or the one that the arrow keys have reached, is told. */
function tell(svg, points, onlyAcross = false) {
  if (!points.length) return;
  const cursor = svgNode(svg, "circle", { class: "cursor", r: 8 });
  let current = 0;
  const scale = () => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  function tellOf(number) {
    current = Math.max(0, Math.min(points.length - 1, number));
    const { x, y, text } = points[current];
    const place = svg.getBoundingClientRect();
    hideTip();
    cursor.setAttribute("cx", x);
    cursor.setAttribute("cy", y);
    cursor.style.visibility = "visible";
    tip.textContent = text;
    const { width, height } = tip.getBoundingClientRect();
    const [left, top] = [place.left + x * scale(), place.top + y * scale()];
    tip.style.left = `${Math.max(8, Math.min(left - width / 2, document.documentElement.clientWidth - width - 8))}px`;
    tip.style.top = `${top - height - 14 > 0 ? top - height - 14 : top + 16}px`;
    tip.style.visibility = "visible";
    tellAgain = () => tellOf(current);
  }
  function point(event) {
    const place = svg.getBoundingClientRect();
    const [x, y] = [(event.clientX - place.left) / scale(), (event.clientY - place.top) / scale()];
    let best = 0;
    let least = Infinity;
    points.forEach((one, number) => {
      const distance = Math.abs(one.x - x) + (onlyAcross ? 0 : Math.abs(one.y - y));
      if (distance < least) [least, best] = [distance, number];
    });
    if (least < 60) tellOf(best);
    else hideTip();
  }
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", hideTip);
  svg.addEventListener("focus", () => svg.matches(":focus-visible") && tellOf(current));
  svg.addEventListener("blur", hideTip);
  svg.addEventListener("keydown", (event) => {
    const far = Math.max(1, Math.round(points.length / 10));
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: far, PageUp: -far };
    if (event.key === "Escape") hideTip();
    else if (event.key === "Home") tellOf(0);
    else if (event.key === "End") tellOf(points.length - 1);
    else if (event.key in moves) tellOf(current + moves[event.key]);
    else return;
    event.preventDefault();
  });
}

// --- effectiveness against speed

function mark(parent, part, alone, x, y) {
  const style = `mark ${COLOURS[part] || "grey"}${alone ? " hollow" : ""}`;
  if (part === "our methods")
    svgNode(parent, "path", { class: style, d: `M${x - 6} ${y}L${x} ${y - 6}L${x + 6} ${y}L${x} ${y + 6}Z` });
  else svgNode(parent, "circle", { class: style, cx: x, cy: y, r: 4.5 });
}

const overlap = (a, b) =>
  Math.max(0, Math.min(a.x2, b.x2) - Math.max(a.x1, b.x1)) * Math.max(0, Math.min(a.y2, b.y2) - Math.max(a.y1, b.y1));

/** Puts a name beside each point where it covers nothing, if need be further away with a line to its point. */
function placeNames(svg, points, box) {
  const names = points.map((one) => svgNode(svg, "text", { class: "name" }, one.name));
  const widths = names.map((one) => one.getComputedTextLength());
  const dots = points.map((one) => ({ x1: one.x - 8, x2: one.x + 8, y1: one.y - 8, y2: one.y + 8 }));
  const places = points.map(() => null);
  function cost(number, place) {
    let sum = place.away * 0.6;
    const outside =
      Math.max(0, box.left - place.x1) +
      Math.max(0, place.x2 - box.right) +
      Math.max(0, box.top - place.y1) +
      Math.max(0, place.y2 - box.bottom);
    sum += outside * 50;
    const taken = [
      ...dots.filter((_, other) => other !== number),
      ...places.filter((one, other) => one && other !== number),
    ];
    for (const other of taken) {
      if (overlap(place, other) > 0) sum += 200 + overlap(place, other);
      for (let part = 0.1; place.line && part < 1; part += 0.1) {
        const [x, y] = [
          points[number].x + (place.endX - points[number].x) * part,
          points[number].y + (place.endY - points[number].y) * part,
        ];
        if (x > other.x1 && x < other.x2 && y > other.y1 && y < other.y2) sum += 60;
      }
    }
    return sum;
  }
  function candidates(number) {
    const { x, y } = points[number];
    const width = widths[number];
    const found = [];
    for (const away of [0, 12, 24, 38, 54, 72, 92]) {
      for (const [dx, dy] of [
        [1, 0],
        [-1, 0],
        [0, -1],
        [0, 1],
        [1, -1],
        [1, 1],
        [-1, -1],
        [-1, 1],
      ]) {
        const left =
          dx === 0 ? x - width / 2 : dx > 0 ? x + 10 + away * (dy ? 0.5 : 1) : x - 10 - away * (dy ? 0.5 : 1) - width;
        const middle = y + dy * (dx === 0 || away ? 16 + away : 10);
        const endX = dx === 0 ? x : dx > 0 ? left - 2 : left + width + 2;
        found.push({
          x1: left,
          x2: left + width,
          y1: middle - 8,
          y2: middle + 8,
          away: away + Math.abs(dy),
          line: away > 0,
          endX,
          endY: dx === 0 ? middle - dy * 8 : middle,
        });
      }
    }
    return found;
  }
  for (let round = 0; round < 4; round++) {
    points.forEach((_, number) => {
      places[number] = candidates(number).reduce((best, one) => {
        const price = cost(number, one);
        return best === null || price < best.price ? { ...one, price } : best;
      }, null);
    });
  }
  places.forEach((place, number) => {
    names[number].setAttribute("x", place.x1);
    names[number].setAttribute("y", (place.y1 + place.y2) / 2 + 4);
    if (!place.line) return;
    const { x, y } = points[number];
    const line = svgNode(svg, "line", { class: "leader", x1: x, y1: y, x2: place.endX, y2: place.endY });
    svg.insertBefore(line, svg.querySelector(".mark"));
  });
}

function speedSection() {
  const section = document.getElementById("speed");
  const sets = choice(section, "set", "Query set", draw);
  fill(
    sets,
    report.sets.map((one, number) => [number, one.name]),
    0,
  );
  const parts = [...new Set(report.rows.map((one) => one.part))];
  const entries = parts.map((part) => [part, (svg) => mark(svg, part, false, 11, 6)]);
  if (report.rows.some((one) => one.alone))
    entries.push(["hollow: without BM25 (alone)", (svg) => mark(svg, "others", true, 11, 6)]);
  legend(section, entries);
  function draw() {
    const set = Number(sets.value);
    const { name, measure } = report.sets[set];
    const measured = report.points.filter((one) => one.set === set);
    const shown = measured.filter((one) => one.ms_per_1k > 0);
    const untimed = measured.length - shown.length;
    const caption = untimed ? ` ${whole(untimed)} without a measured time left out.` : "";
    section.querySelector("figcaption").textContent = `${measure} on ${name}.${caption}`;
    show(section.querySelector(".chart"), (holder, width) => {
      if (!shown.length) return;
      const times = shown.map((one) => Math.log10(one.ms_per_1k));
      const [low, high] = [Math.floor(Math.min(...times) - 0.05), Math.ceil(Math.max(...times) + 0.05)];
      const decades = Array.from({ length: high - low + 1 }, (_, number) => Number(`1e${low + number}`));
      const fine = decades.slice(0, -1).flatMap((one) => [2, 3, 4, 5, 6, 7, 8, 9].map((times) => times * one));
      const x = {
        from: decades[0],
        to: decades[decades.length - 1],
        ticks: decades,
        fine,
        log: true,
        title: "ms per 1,000 documents (log scale)",
        text: (value) => whole(value),
      };
      const values = shown.map((one) => one.value);
      const pad = (Math.max(...values) - Math.min(...values)) * 0.05 || 0.01;
      const y = axis(Math.min(...values) - pad, Math.max(...values) + pad, 5, measure);
      const label = `Scatter plot of ${measure} on ${name} against milliseconds per 1,000 documents, ${shown.length} rows`;
      const { svg, sx, sy, box } = frame(holder, width, width < 600 ? 440 : 430, label, x, y);
      const points = shown.map((one) => {
        const row = report.rows[one.row];
        const text = `${row.name}\n${measure} ${one.value.toFixed(4)}\n${short(one.ms_per_1k)} ms per 1,000 documents, ${one.device}`;
        return { x: sx(one.ms_per_1k), y: sy(one.value), text, name: row.name, row };
      });
      points.sort((a, b) => a.x - b.x);
      if (width < 600 && points.length > 14) {
        // No room for so many names: numbers, and what they mean below.
        const key = node("ol", { class: "key" });
        key.append(...points.map((one) => node("li", {}, one.name)));
        holder.append(key);
        points.forEach((one, number) => (one.name = String(number + 1)));
      }
      for (const one of points) mark(svg, one.row.part, one.row.alone, one.x, one.y);
      placeNames(svg, points, box);
      tell(svg, points);
    });
  }
  draw();
}

// --- learning curves

function curveChart(holder, curves, title, ranker, seeds) {
  show(holder, (inside, width) => {
    const values = curves.flatMap((one) => one.values.filter((value) => value !== null));
    if (!values.length) return;
    const steps = curves.flatMap((one) => one.steps);
    const x = axis(0, Math.max(...steps), 4, "optimiser steps");
    const y = axis(Math.min(...values), Math.max(...values), 4, title);
    const label = `${title} of ${ranker} over the steps, ${curves.length} seed${curves.length > 1 ? "s" : ""}, last ${values[values.length - 1]}`;
    const { svg, sx, sy } = frame(inside, width, 210, label, x, y);
    const points = [];
    for (const one of curves) {
      const style = `curve seed-${seeds.indexOf(one.seed) % SEED_COLOURS}`;
      let path = "";
      let pen = "M";
      one.steps.forEach((step, number) => {
        const value = one.values[number];
        if (value === null)
          pen = "M"; // not a number: a gap
        else {
          path += `${pen}${sx(step).toFixed(1)} ${sy(value).toFixed(1)}`;
          pen = "L";
          points.push({
            x: sx(step),
            y: sy(value),
            text: `seed ${one.seed}, step ${whole(step)}\n${title} ${value.toPrecision(4)}`,
          });
          if (one.steps.length <= 20) svgNode(svg, "circle", { class: style, cx: sx(step), cy: sy(value), r: 2 });
        }
      });
      svgNode(svg, "path", { class: style, d: path });
    }
    tell(svg, points);
  });
}

function curvesSection() {
  const section = document.getElementById("curves");
  const note = section.querySelector("p");
  if (!report.trainings.length) {
    note.textContent = "None: no ranker of this table was trained by gradients.";
    return;
  }
  const all = report.trainings.flatMap((one) => [...one.validation, ...one.loss]);
  const thinned = all.some((one) => one.of > one.steps.length);
  note.textContent =
    "Each chart has its own scale." +
    (thinned
      ? ` Long curves show the means of ${whole(Math.max(...all.map((one) => one.steps.length)))} stretches.`
      : "");
  const seeds = [...new Set(all.map((one) => one.seed))].sort((a, b) => a - b);
  legend(
    section,
    seeds.map((seed, number) => [
      `seed ${seed}`,
      (svg) => svgNode(svg, "path", { class: `curve seed-${number % SEED_COLOURS}`, d: "M0 6H22" }),
    ]),
  );
  for (const training of report.trainings) {
    const panel = node("div", { class: "panel" });
    panel.append(node("h3", {}, training.ranker));
    section.querySelector(".panels").append(panel);
    for (const [curves, title] of [
      [training.validation, "validation MRR"],
      [training.loss, "training loss"],
    ]) {
      if (!curves.length) continue;
      const holder = node("div", { class: "chart" });
      panel.append(holder);
      curveChart(holder, curves, title, training.ranker, seeds);
    }
  }
}

// --- query by query

/** The queries of a set, largest difference first; equal ones in the order of the set. */
function compared(set, a, b) {
  const [mine, others] = [set.values[a], set.values[b]];
  const queries = mine.map((value, query) => ({
    query,
    a: value,
    b: others[query],
    difference: value - others[query],
  }));
  const losses = queries
    .filter((one) => one.difference < 0)
    .sort((one, two) => one.difference - two.difference || one.query - two.query);
  queries.sort((one, two) => two.difference - one.difference || one.query - two.query);
  return { queries, losses };
}

function drawDifferences(holder, set, queries, names) {
  show(holder, (inside, width) => {
    const differences = queries.map((one) => one.difference / report.unit);
    const x = axis(0, queries.length, width < 600 ? 4 : 8, "queries, sorted by difference");
    x.to = queries.length;
    x.ticks = x.ticks.filter((value) => value <= queries.length);
    const y = axis(
      Math.min(-0.01, ...differences.slice(-1)),
      Math.max(0.01, differences[0]),
      5,
      `${set.measure}: A − B`,
    );
    y.text = (value) => (value === 0 ? "0" : signed(value, decimals(y.ticks)));
    const label = `Per-query differences in ${set.measure} on ${set.name}, ${names[0]} minus ${names[1]}, from ${differences[0]} to ${differences[differences.length - 1]}`;
    const { svg, sx, sy, box } = frame(inside, width, 300, label, x, y);
    const gap = sx(1) - sx(0) > 4 ? 1 : 0;
    const paths = { blue: "", orange: "" };
    for (let from = 0; from < queries.length;) {
      let to = from + 1; // bars of equal height are one piece, where there is no room for a gap between them
      while (!gap && to < queries.length && differences[to] === differences[from]) to++;
      const height = sy(differences[from]);
      const piece = `M${sx(from).toFixed(2)} ${sy(0)}V${height.toFixed(2)}H${(sx(to) - gap).toFixed(2)}V${sy(0)}Z`;
      if (differences[from] !== 0) paths[differences[from] > 0 ? "blue" : "orange"] += piece;
      from = to;
    }
    for (const [colour, path] of Object.entries(paths)) svgNode(svg, "path", { class: `bars ${colour}`, d: path });
    svgNode(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: sy(0), y2: sy(0) });
    const told = queries.map((one, number) => {
      const text = set.texts[one.query];
      const values = `${signed(one.difference / report.unit)}  (A ${(one.a / report.unit).toFixed(4)}, B ${(one.b / report.unit).toFixed(4)})`;
      return { x: sx(number + 0.5), y: sy(differences[number]), text: text ? `${values}\n${text[1]}` : values };
    });
    tell(svg, told, true);
  });
}

function listOf(title, entries, set) {
  const part = node("div");
  part.append(node("h3", {}, title));
  if (!entries.length) {
    part.append(node("p", { class: "quiet" }, "None."));
    return part;
  }
  const table = node("table");
  const head = node("tr");
  for (const text of ["query", "A − B"]) head.append(node("th", { scope: "col" }, text));
  const body = node("tbody");
  for (const one of entries) {
    const line = node("tr");
    const text = set.texts[one.query];
    const query = node("td", {}, text ? text[1] : "(its text is not on this page)");
    const [mine, other] = [one.a, one.b].map((value) => (value / report.unit).toFixed(4));
    query.append(node("small", {}, `${text ? `${text[0]}: ` : ""}A ${mine}, B ${other}`));
    line.append(query, node("td", {}, signed(one.difference / report.unit)));
    body.append(line);
  }
  const top = node("thead");
  top.append(head);
  table.append(top, body);
  part.append(table);
  return part;
}

function queriesSection() {
  const section = document.getElementById("queries");
  const sets = choice(section, "set", "Query set", () => {
    offer();
    draw();
  });
  const a = choice(section, "a", "Row A", draw);
  const b = choice(section, "b", "Row B", draw);
  const swap = node("button", { type: "button" }, "Swap A and B");
  swap.addEventListener("click", () => {
    [a.value, b.value] = [b.value, a.value];
    draw();
  });
  section.querySelector(".controls").append(swap);
  fill(
    sets,
    report.sets.map((one, number) => [number, one.name]),
    0,
  );
  /** The rows that are measured on the set: at first the best one against the first one. */
  function offer() {
    const set = Number(sets.value);
    const rows = Object.keys(report.sets[set].values).map(Number);
    const options = rows.map((row) => [row, report.rows[row].name]);
    const points = report.points.filter((one) => one.set === set);
    const best = points.reduce((one, two) => (two.value > one.value ? two : one)).row;
    fill(a, options, best);
    fill(b, options, rows.find((row) => row !== best) ?? best);
  }
  function draw() {
    const set = report.sets[Number(sets.value)];
    const names = [report.rows[a.value].name, report.rows[b.value].name];
    const { queries, losses } = compared(set, a.value, b.value);
    const better = queries.filter((one) => one.difference > 0).length;
    const mean = queries.reduce((sum, one) => sum + one.difference, 0) / queries.length / report.unit;
    const counts = section.querySelector(".counts");
    counts.replaceChildren();
    for (const [text, value] of [
      ["better", better],
      ["equal", queries.length - better - losses.length],
      ["worse", losses.length],
    ]) {
      const part = node("span", { "data-count": text });
      part.append(node("b", {}, whole(value)), ` ${text}`);
      counts.append(part);
    }
    const average = node("span");
    average.append("mean difference ", node("b", {}, signed(mean)));
    counts.append(average);
    section.querySelector("figcaption").textContent = `${set.measure} on ${set.name}; A: ${names[0]}, B: ${names[1]}.`;
    drawDifferences(section.querySelector(".chart"), set, queries, names);
    const wins = queries.slice(0, Math.min(report.listed, better));
    const lists = [
      listOf("Largest wins of A", wins, set),
      listOf("Largest losses of A", losses.slice(0, report.listed), set),
    ];
    section.querySelector(".lists").replaceChildren(...lists);
    const left = [`Values are rounded to ${1 / report.unit}; smaller differences count as equal.`];
    if (set.queries < set.total)
      left.push(
        `The page has ${whole(set.queries)} of the ${whole(set.total)} queries, evenly spread over the set: all would make it too large.`,
      );
    if (set.textless)
      left.push(`The texts of ${whole(set.textless)} listed queries are left out: they would make the page too large.`);
    section.querySelector(".left-out").textContent = left.join(" ");
  }
  offer();
  draw();
}

// --- score distributions

function drawScores(holder, found, title) {
  show(holder, (inside, width) => {
    const { edges } = found;
    const groups = [
      ["blue", "other candidates", found.others],
      ["orange", "relevant documents", found.relevant],
    ].map(([colour, name, counts]) => {
      const total = counts.reduce((sum, one) => sum + one, 0);
      return { colour, name, counts, shares: counts.map((one) => (total ? (100 * one) / total : 0)) };
    });
    const high = Math.max(...groups.flatMap((one) => one.shares));
    const y = axis(0, high, 4, "share of the documents");
    y.text = (value) => `${value}%`;
    const within = ticks(edges[0], edges[edges.length - 1], width < 600 ? 4 : 8).filter(
      (one) => one >= edges[0] && one <= edges[edges.length - 1],
    );
    const x = {
      from: edges[0],
      to: edges[edges.length - 1],
      ticks: within,
      title: "score",
      text: (value) => String(value).replace("-", "−"),
    };
    const { svg, sx, sy } = frame(
      inside,
      width,
      300,
      `Histograms of the scores of ${title}: relevant documents against other candidates`,
      x,
      y,
    );
    for (const { colour, shares } of groups) {
      const steps = shares.map((share, bin) => `V${sy(share).toFixed(1)}H${sx(edges[bin + 1]).toFixed(1)}`);
      svgNode(svg, "path", { class: `outline ${colour}`, d: `M${sx(edges[0])} ${sy(0)}${steps.join("")}V${sy(0)}` });
    }
    const told = found.relevant.map((_, bin) => {
      const lines = groups.map((one) => `${one.name}: ${one.shares[bin].toFixed(1)}% (${whole(one.counts[bin])})`);
      const middle = (edges[bin] + edges[bin + 1]) / 2;
      const range = `score ${edges[bin].toPrecision(4)} to ${edges[bin + 1].toPrecision(4)}`;
      return {
        x: sx(middle),
        y: sy(Math.max(...groups.map((one) => one.shares[bin]))),
        text: [range, ...lines.reverse()].join("\n"),
      };
    });
    tell(svg, told, true);
  });
}

function scoresSection() {
  const section = document.getElementById("scores");
  if (!report.scores.length) {
    section.querySelector("p").textContent = "None were stored: evaluate the rankers again to see them.";
    return;
  }
  const sets = choice(section, "set", "Query set", () => {
    offer();
    draw();
  });
  const rows = choice(section, "row", "Row", draw);
  const stored = [...new Set(report.scores.map((one) => one.set))].sort((one, two) => one - two);
  fill(
    sets,
    stored.map((set) => [set, report.sets[set].name]),
    stored[0],
  );
  legend(
    section,
    [
      ["relevant documents", "orange"],
      ["other candidates", "blue"],
    ].map(([text, colour]) => [
      text,
      (svg) => svgNode(svg, "rect", { class: `outline ${colour}`, x: 3, y: 2, width: 16, height: 8 }),
    ]),
  );
  function offer() {
    const mine = report.scores.filter((one) => one.set === Number(sets.value));
    fill(
      rows,
      mine.map((one) => [one.row, report.rows[one.row].name]),
      mine[0].row,
    );
  }
  function draw() {
    const found = report.scores.find((one) => one.set === Number(sets.value) && one.row === Number(rows.value));
    const title = `${report.rows[found.row].name} on ${report.sets[found.set].name}`;
    const [relevant, others] = [found.relevant, found.others].map((counts) =>
      whole(counts.reduce((sum, one) => sum + one, 0)),
    );
    section.querySelector("figcaption").textContent =
      `${title}, seed ${found.seed}: ${relevant} relevant documents, ${others} other candidates. The outermost bins also hold what lies beyond them.`;
    drawScores(section.querySelector(".chart"), found, title);
  }
  offer();
  draw();
}

// A chart that gets the focus is scrolled into view: its tooltip goes with it.
document.addEventListener("scroll", () => tellAgain && tellAgain(), { passive: true });
if (report.points.length) {
  speedSection();
  queriesSection();
}
curvesSection();
scoresSection();
