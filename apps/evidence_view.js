"use strict";
// One explained document (the JSON of evaluation/explanation.py) as a card: point at a query word, and what it rests on
// in the document lights up; point at a document word, and the query words that rest on it do. All texts are written
// with textContent: whatever a query or a document says, it stays text.

const evidenceView = (() => {
  const LISTED = 5; // document words of a query word in the table
  const LEAST = 0.01; // a smaller part of what a query word rests on is not listed
  const element = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const percent = (share) => (share >= 0.995 ? "100" : share >= 0.0995 ? (100 * share).toFixed(0) : (100 * share).toFixed(1)) + "%";
  const short = (value) => String(Number(value.toPrecision(5)));

  // Python counts characters, JavaScript half-characters of the rarer ones.
  const characters = (text) => Array.from(text);

  function textOf(explanation, feature, lit) {
    const box = element("p", "text");
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "text of the document");
    const text = characters(explanation.text);
    const used = new Map(); // number of a document word -> what rests on it
    feature.query_words.forEach((word, place) => {
      for (const [number, share] of word.rests_on) {
        if (!used.has(number)) used.set(number, new Map());
        used.get(number).set(place, share);
      }
    });
    const chunks = new Map(feature.chunks.map((number, place) => [number, place + 2]));
    const numbers = [...new Set([...used.keys(), ...chunks.keys()])].sort((a, b) => a - b);
    const end = feature.unread_from ?? text.length;
    let at = 0;
    for (const number of numbers) {
      const [start, stop] = feature.document_words[number];
      if (start < at) continue; // a character of several pieces: it is there already
      box.append(text.slice(at, start).join(""));
      if (chunks.has(number)) box.append(element("span", "chunk", `chunk ${chunks.get(number)}`));
      if (used.has(number)) {
        const mark = element("mark", "", text.slice(start, stop).join(""));
        lit.marks.push({ mark, shares: used.get(number) });
        box.append(mark);
      } else {
        box.append(text.slice(start, stop).join(""));
      }
      at = stop;
    }
    box.append(text.slice(at, Math.max(at, end)).join(""));
    if (end < text.length) box.append(element("span", "unread", `${text.slice(end).join("")} (not read by the ranker from here on)`));
    return box;
  }

  function chipsOf(feature, lit) {
    const list = element("ul", "words");
    feature.query_words.forEach((word, place) => {
      const item = element("li");
      const chip = element("button", "", word.word);
      chip.type = "button";
      chip.setAttribute("aria-pressed", "false");
      const value = feature.kind === "model1" ? word.log_score : word.value;
      chip.append(" ", element("small", "", value.toFixed(2)));
      chip.title = feature.kind === "model1" ? `log P(${word.word} | document)` : `BM25 of ${word.word}`;
      chip.addEventListener("pointerenter", () => lit.show(place));
      chip.addEventListener("pointerleave", () => lit.show(null));
      chip.addEventListener("focus", () => lit.show(place));
      chip.addEventListener("blur", () => lit.show(null));
      chip.addEventListener("click", () => lit.pin(place));
      lit.chips.push(chip);
      item.append(chip);
      list.append(item);
    });
    for (const word of feature.unread_query_words) {
      const item = element("li", "quiet", `${word} (not read)`);
      list.append(item);
    }
    return list;
  }

  function tableOf(explanation, feature) {
    const text = characters(explanation.text);
    const table = element("table", "shares");
    const head = table.createTHead().insertRow();
    for (const title of ["query word", feature.kind === "model1" ? "log P(q|D)" : "adds", "document words (share)"]) {
      head.append(element("th", "", title));
    }
    const body = table.createTBody();
    for (const word of feature.query_words) {
      const shares = new Map();
      for (const [number, share] of word.rests_on) {
        const [start, stop] = feature.document_words[number];
        const said = text.slice(start, stop).join("").toLowerCase();
        shares.set(said, (shares.get(said) ?? 0) + share);
      }
      const best = [...shares].sort((a, b) => b[1] - a[1]);
      const parts = best.slice(0, LISTED).map(([said, share]) => `${said} ${percent(share)}`);
      const others = best.slice(LISTED).reduce((sum, [, share]) => sum + share, word.others);
      for (const [name, share] of [["other words", others], ["the collection", word.smoothing], ["the floor", word.floor]]) {
        if (share >= LEAST) parts.push(`(${name} ${percent(share)})`);
      }
      const row = body.insertRow();
      row.append(element("td", "", word.word));
      row.append(element("td", "number", (feature.kind === "model1" ? word.log_score : word.value).toFixed(3)));
      row.append(element("td", "", parts.length ? parts.join(", ") : "nothing"));
    }
    const scroll = element("div", "scroll");
    scroll.append(table);
    return scroll;
  }

  function bodyOf(explanation, feature) {
    const lit = {
      chips: [], marks: [], pinned: null,
      show(place) {
        const shown = place ?? lit.pinned;
        for (const { mark, shares } of lit.marks) {
          const all = [...shares.values()].reduce((sum, one) => sum + one, 0);
          const share = shown === null ? Math.min(1, all) : shares.get(shown) ?? 0;
          mark.dataset.share = share.toFixed(4);
          mark.style.setProperty("--share", (shown === null ? share : Math.sqrt(share)).toFixed(4)); // of one word a tenth is seen
        }
      },
      pin(place) {
        lit.pinned = lit.pinned === place ? null : place;
        lit.chips.forEach((chip, number) => chip.setAttribute("aria-pressed", String(number === lit.pinned)));
        lit.show(null);
        if (lit.pinned === null || !lit.marks.length) return;
        const of = ({ shares }) => shares.get(place) ?? 0;
        const best = lit.marks.reduce((most, one) => (of(one) > of(most) ? one : most));
        if (of(best) > 0) text.scrollTo({ top: best.mark.offsetTop - text.offsetTop - text.clientHeight / 3 });
      },
    };
    const body = element("div");
    const chips = chipsOf(feature, lit);
    const text = textOf(explanation, feature, lit);
    for (const { mark, shares } of lit.marks) {
      mark.title = [...shares].sort((a, b) => b[1] - a[1]).map(([place, share]) => `${feature.query_words[place].word} ${percent(share)}`).join(", ");
      mark.addEventListener("pointerenter", () => shares.forEach((_, place) => lit.chips[place].classList.add("lit")));
      mark.addEventListener("pointerleave", () => lit.chips.forEach((chip) => chip.classList.remove("lit")));
    }
    const details = element("details");
    details.append(element("summary", "quiet", "query word ← document words"), tableOf(explanation, feature));
    body.append(chips, text, details);
    lit.show(null);
    return body;
  }

  function headerOf(hit) {
    const header = element("header");
    if (hit.rank !== null) header.append(element("span", "quiet", `${hit.rank}.`));
    header.append(element("span", "id", hit.document), element("span", "score", short(hit.score)));
    return header;
  }

  // A document whose evidence is not known yet.
  function plainCard(hit) {
    const box = element("article", "hit");
    box.append(headerOf(hit), element("p", "text", hit.text));
    return box;
  }

  function card(explanation) {
    const box = element("article", "hit");
    const header = headerOf(explanation);
    const features = [...explanation.features].reverse(); // the ranker's own first
    if (explanation.features.length > 1) {
      const sum = explanation.features.map((one) => `${short(one.weight)} × ${short(one.value)} ${one.name}`).join(" + ");
      header.append(element("span", "quiet", `= ${sum}`));
    }
    box.append(header);
    let body = bodyOf(explanation, features[0]);
    if (features.length > 1) {
      const choice = element("select");
      choice.setAttribute("aria-label", "part of the score that is shown");
      features.forEach((one, number) => choice.append(new Option(one.name, String(number))));
      choice.addEventListener("change", () => {
        const next = bodyOf(explanation, features[Number(choice.value)]);
        body.replaceWith(next);
        body = next;
      });
      header.append(choice);
    }
    box.append(body);
    return box;
  }

  function difference(found) {
    const table = element("table");
    const head = table.createTHead().insertRow();
    const several = found.features.length > 1;
    for (const title of ["query word", ...found.features, ...(several ? ["together"] : [])]) head.append(element("th", "", title));
    const body = table.createTBody();
    const signed = (value) => (value > 0 ? "+" : "") + value.toFixed(4);
    for (const { word, by_feature: values, total } of found.words) {
      const row = body.insertRow();
      row.append(element("td", "", word));
      for (const value of several ? [...values, total] : values) row.append(element("td", "number", signed(value)));
    }
    const scroll = element("div", "scroll");
    scroll.append(table);
    return scroll;
  }

  return { card, plainCard, difference, element };
})();
