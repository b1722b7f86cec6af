// --- strongest translations: for each query word a panel, in it a column of bars for each translation table
// Stands behind report_page.js in the same script, whose functions draw here too.

const TABLE_COLOURS = { EM: "blue", neural: "orange" };
const LINE = 18; // height of a bar and the space below it
const SHEET_PANEL = 330; // two panels stand beside each other on paper

const probability = (value) => (value < 0.0005 ? value.toExponential(0) : value.toFixed(3));

/** Takes letters from the end of an SVG text until it fits. */
function shorten(text, width) {
  const letters = [...text.textContent];
  while (letters.length > 1 && text.getComputedTextLength() > width) {
    letters.pop();
    text.textContent = `${letters.join("")}…`;
  }
}

/** A column of bars at `left`, `top`; gives the points for its tooltips. `most`: {value, letters} of all bars. */
function translationBars(svg, column, word, place, box, most) {
  const { left, top, width } = box;
  const { strongest } = column.words[place];
  const space = 42; // for the number behind the longest bar
  const middle = (number) => top + 18 + LINE * (number + 0.5);
  const names = strongest.map(([text], number) =>
    svgNode(svg, "text", { class: "name", y: middle(number) + 4, "text-anchor": "end" }, text),
  );
  const room = Math.min(150, width * 0.45, most.letters * 7); // the same in all panels, and so is the scale
  names.forEach((name) => shorten(name, room));
  const start = left + room + 6;
  svgNode(svg, "text", { x: start, y: top + 11 }, column.kind);
  const scale = linear(0, most.value, 0, left + width - space - start);
  return strongest.map(([text, value], number) => {
    const long = Math.max(1, scale(value));
    names[number].setAttribute("x", start - 6);
    const bar = { x: start, y: middle(number) - 6, width: long, height: 12 };
    svgNode(svg, "rect", { class: `bars ${TABLE_COLOURS[column.kind] || "grey"}`, ...bar });
    svgNode(svg, "text", { x: start + long + 5, y: middle(number) + 4 }, probability(value));
    return { x: start + long, y: middle(number), text: `T(${word} | ${text}) = ${value}\n${column.row}` };
  });
}

function drawTranslations(holder, place, most) {
  const { words, columns } = report.translations;
  const { word } = words[place];
  show(holder, (inside, width) => {
    const beside = width < 320 ? 1 : columns.length; // a narrow phone has them below each other
    const gap = 20;
    const each = (width - gap * (beside - 1)) / beside;
    const heights = columns.map((one) => 18 + LINE * one.words[place].strongest.length + 6);
    const height = beside > 1 ? Math.max(...heights) : heights.reduce((sum, one) => sum + one, 0);
    const told = columns.map(
      (one) => `${one.row}: ${one.words[place].strongest.map(([text, value]) => `${text} ${value}`).join(", ")}`,
    );
    const svg = svgNode(inside, "svg", {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": `Strongest translations of ${word}. ${told.join(". ")}`,
      tabindex: 0,
    });
    let top = 0;
    const points = columns.flatMap((one, number) => {
      const box = { left: beside > 1 ? number * (each + gap) : 0, top, width: each };
      if (beside === 1) top += heights[number];
      return translationBars(svg, one, word, place, box, most);
    });
    tell(svg, points);
  });
}

/** T(q|q) of a table: one number, or from where to where. */
function selfTranslation(column) {
  const values = column.words.map((one) => one.itself);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return `${low === high ? low : `${low} to ${high}`} in ${column.row}`;
}

function translationsSection() {
  const section = document.getElementById("translations");
  const { words, columns, least } = report.translations;
  section.querySelector("p").textContent =
    "T(q|d): how likely a document word d says the query word q. Beside each q, how often the development queries have it; below, the words d with the largest T(q|d). All bars have one scale.";
  legend(
    section,
    columns.map((one) => [
      `${one.kind}: ${one.row}, seed ${one.seed}`,
      (svg) =>
        svgNode(svg, "rect", {
          class: `bars ${TABLE_COLOURS[one.kind] || "grey"}`,
          x: 2,
          y: 1,
          width: 18,
          height: 10,
        }),
    ]),
  );
  const rare = least > 1 ? ` Left out too are document words of fewer than ${least} documents.` : "";
  section.querySelector(".left-out").textContent =
    `The word itself is left out, as T(q|q) is set and not learned: ${columns.map(selfTranslation).join(", ")}.${rare}`;
  const bars = columns.flatMap((one) => one.words.flatMap((of) => of.strongest));
  const most = {
    value: Math.max(...bars.map(([, value]) => value)),
    letters: Math.max(...bars.map(([text]) => text.length)),
  };
  const panels = section.querySelector(".panels");
  if (columns.length > 1) panels.classList.add("wide");
  words.forEach(({ word, times }, place) => {
    const panel = node("div", { class: "panel" });
    const title = node("h3", {}, word);
    title.append(" ", node("small", {}, `${whole(times)} time${times > 1 ? "s" : ""}`));
    const holder = node("div", { class: "chart", "data-sheet": SHEET_PANEL });
    panel.append(title, holder);
    panels.append(panel);
    drawTranslations(holder, place, most);
  });
}

if (report.translations) translationsSection();
