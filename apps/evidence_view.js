"use strict";
// One explained document (the JSON of apps/explanation_page.py) as a card. Pointing at a query word highlights its evidence
// in the document; pointing at a document word marks the query words that rest on it. All texts are written with
// textContent: whatever a query or a document says, it stays text.

const evidenceView = (() => {
  // attributes: an object, or the class
  function element(name, attributes, ...children) {
    const node = document.createElement(name);
    const pairs = typeof attributes === "string" ? { class: attributes } : attributes;
    for (const [key, value] of Object.entries(pairs)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }
  const percent = (share) => (100 * share).toFixed(share >= 0.995 || share >= 0.0995 ? 0 : 1) + "%";
  const short = (value) => String(Number(value.toPrecision(5)));
  const valueOf = (feature, word) => (feature.kind === "model1" ? word.log_score : word.value);

  // titles: of the columns; rows: cells that are texts, or numbers as [text]
  function tableOf(className, titles, rows) {
    const table = element("table", className);
    table.createTHead().insertRow().append(...titles.map((title) => element("th", {}, title)));
    const body = table.createTBody();
    for (const cells of rows) {
      body.insertRow().append(...cells.map((cell) => element("td", Array.isArray(cell) ? "number" : {}, String(cell))));
    }
    return element("div", "scroll", table);
  }

  // The text with a mark for each document word that a query word rests on; marks gets {mark, shares} for each,
  // where shares maps the index of a query word to its share.
  function textOf(explanation, feature, marks) {
    const box = element("p", { class: "text", tabindex: 0, role: "region", "aria-label": "text of the document" });
    const text = Array.from(explanation.text); // Python counts characters, JavaScript UTF-16 units
    const slice = (start, stop) => text.slice(start, stop).join("");
    const evidence = new Map(); // document word -> its shares
    feature.query_words.forEach((word, index) => {
      for (const [number, share] of word.rests_on) {
        if (!evidence.has(number)) evidence.set(number, new Map());
        evidence.get(number).set(index, share);
      }
    });
    const chunks = new Map(feature.chunks.map((number, index) => [number, index + 2]));
    let position = 0;
    for (const number of [...new Set([...evidence.keys(), ...chunks.keys()])].sort((a, b) => a - b)) {
      const [start, stop] = feature.document_words[number];
      if (start < position) continue; // a character of several pieces: it is shown already
      box.append(slice(position, start));
      if (chunks.has(number)) box.append(element("span", "chunk", `chunk ${chunks.get(number)}`));
      const word = evidence.has(number) ? element("mark", {}, slice(start, stop)) : slice(start, stop);
      if (evidence.has(number)) marks.push({ mark: word, shares: evidence.get(number) });
      box.append(word);
      position = stop;
    }
    const end = feature.unread_from ?? text.length;
    box.append(slice(position, Math.max(position, end)));
    if (end < text.length) box.append(element("span", "unread", `${slice(end)} (not read by the ranker from here on)`));
    return box;
  }

  function bodyOf(explanation, feature) {
    const marks = [];
    const text = textOf(explanation, feature, marks);
    let pinned = null; // index of the query word whose evidence stays highlighted

    // Highlight the evidence of the query word, or of the pinned one, or of all words together.
    function highlight(index) {
      const shown = index ?? pinned;
      for (const { mark, shares } of marks) {
        const sum = [...shares.values()].reduce((total, share) => total + share, 0);
        const share = shown === null ? Math.min(1, sum) : shares.get(shown) ?? 0;
        mark.dataset.share = share.toFixed(4);
        mark.style.setProperty("--share", (shown === null ? share : Math.sqrt(share)).toFixed(4)); // a tenth can be seen
      }
    }

    function pin(index) {
      pinned = pinned === index ? null : index;
      buttons.forEach((button, number) => button.setAttribute("aria-pressed", String(number === pinned)));
      highlight(null);
      const shareOf = ({ shares }) => shares.get(pinned) ?? 0;
      const best = marks.reduce((most, item) => (shareOf(item) > shareOf(most) ? item : most), { shares: new Map() });
      if (best.mark) text.scrollTo({ top: best.mark.offsetTop - text.offsetTop - text.clientHeight / 3 });
    }

    const buttons = feature.query_words.map((word, index) => {
      const title = feature.kind === "model1" ? `log P(${word.word} | document)` : `BM25 of ${word.word}`;
      const value = element("small", {}, valueOf(feature, word).toFixed(2));
      const button = element("button", { type: "button", title, "aria-pressed": false }, word.word, " ", value);
      for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => highlight(index));
      for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => highlight(null));
      button.addEventListener("click", () => pin(index));
      return button;
    });
    for (const { mark, shares } of marks) {
      const sorted = [...shares].sort((a, b) => b[1] - a[1]);
      mark.title = sorted.map(([index, share]) => `${feature.query_words[index].word} ${percent(share)}`).join(", ");
      mark.addEventListener("pointerenter", () => shares.forEach((_, index) => buttons[index].classList.add("related")));
      mark.addEventListener("pointerleave", () => buttons.forEach((button) => button.classList.remove("related")));
    }
    const unread = feature.unread_query_words.map((word) => element("li", "quiet", `${word} (not read)`));
    const words = element("ul", "words", ...buttons.map((button) => element("li", {}, button)), ...unread);
    const titles = ["query word", feature.kind === "model1" ? "log P(q|D)" : "adds", "document words (share)"];
    const rows = feature.query_words.map((word) => {
      const strongest = word.strongest.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
      return [word.word, [valueOf(feature, word).toFixed(3)], strongest || "nothing"];
    });
    const summary = element("summary", "quiet", "query word ← document words");
    highlight(null);
    return element("div", {}, words, text, element("details", {}, summary, tableOf("shares", titles, rows)));
  }

  function headerOf(hit) {
    const header = element("header", {});
    if (hit.rank !== null) header.append(element("span", "quiet", `${hit.rank}.`));
    header.append(element("span", "id", hit.document), element("span", "score", short(hit.score)));
    return header;
  }

  // A document whose evidence has not arrived yet.
  const plainCard = (hit) => element("article", "hit", headerOf(hit), element("p", "text", hit.text));

  function card(explanation) {
    const header = headerOf(explanation);
    const features = [...explanation.features].reverse(); // the ranker's own first
    const body = element("div", {}, bodyOf(explanation, features[0]));
    if (features.length > 1) {
      const parts = explanation.features.map((part) => `${short(part.weight)} × ${short(part.value)} ${part.name}`);
      const options = features.map((feature, index) => new Option(feature.name, String(index)));
      const choice = element("select", { "aria-label": "part of the score that is shown" }, ...options);
      choice.addEventListener("change", () => body.replaceChildren(bodyOf(explanation, features[Number(choice.value)])));
      header.append(element("span", "quiet", `= ${parts.join(" + ")}`), choice);
    }
    return element("article", "hit", header, body);
  }

  function difference(content) {
    const several = content.features.length > 1;
    const rows = content.words.map(({ word, by_feature: values, total }) => {
      const signed = [...values, ...(several ? [total] : [])].map((value) => [(value > 0 ? "+" : "") + value.toFixed(4)]);
      return [word, ...signed];
    });
    return tableOf("plain", ["query word", ...content.features, ...(several ? ["together"] : [])], rows);
  }

  return { card, plainCard, difference, element };
})();
