(() => {
  const byId = (id) => document.getElementById(id);
  const [form, input, ranker, status, columns] = ["form", "query", "ranker", "status", "columns"].map(byId);
  const PAUSE = 120; // milliseconds without a key before a query is sent, and between two queries
  const [BUSY, TRIES] = [503, 5]; // status of a server with too many queries; how often it is asked
  const LONGEST_ADDRESS = 1000; // characters of a query that the address of the page may hold
  let timer = 0;
  let sent = -Infinity; // when a query was sent last
  let waiting = null; // the request that is under way; a newer one ends it

  function say(text, wrong = false) {
    status.textContent = text;
    status.classList.toggle("wrong", wrong);
  }

  function fail(text) {
    columns.hidden = true; // what is there belongs to another query
    say(text, true);
  }

  function moved(hit, others) {
    const before = others.get(hit.document);
    if (before === undefined) return "not among the first of BM25";
    if (before === hit.rank) return "";
    return before > hit.rank ? `▲ from ${before}` : `▼ from ${before}`;
  }

  function show(found, cardOf) {
    const ranks = new Map(found.left.map((hit) => [hit.document, hit.rank]));
    byId("right-title").textContent = found.ranker;
    for (const side of ["left", "right"]) {
      const cards = found[side].map((hit) => {
        const card = cardOf(hit);
        const move = side === "right" ? moved(hit, ranks) : "";
        if (move) card.querySelector("header").append(evidenceView.element("span", "moved", move));
        return card;
      });
      byId(side).replaceChildren(...cards);
    }
    columns.hidden = found.left.length === 0;
  }

  async function ask(what, query, signal) {
    for (let tries = 1; ; tries++) {
      const answer = await fetch(what, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ query, ranker: ranker.value }),
        signal,
      });
      if (answer.status !== BUSY || tries === TRIES) return { good: answer.ok, found: await answer.json() };
      await new Promise((done) => setTimeout(done, tries * PAUSE));
    }
  }

  // First the rankings, then what they rest on.
  async function answer(query, mine) {
    for (const what of ["search", "evidence"]) {
      const { good, found } = await ask(what, query, mine.signal);
      if (waiting !== mine) return;
      if (!good) {
        fail(found.error);
        return;
      }
      if (what === "search") {
        show(found, evidenceView.plainCard);
        const many = `${found.candidates.toLocaleString("en")} candidate${found.candidates === 1 ? "" : "s"}`;
        const took = `${many} found and ranked in ${found.milliseconds.toFixed(1)} ms`;
        say(found.left.length ? took : "No document has a word of this query.");
      } else {
        show(found, evidenceView.card);
        columns.dataset.query = found.query;
      }
    }
  }

  async function search() {
    clearTimeout(timer);
    const query = input.value;
    if (waiting) waiting.abort();
    waiting = null;
    remember(query);
    if (!query.trim()) {
      columns.hidden = true;
      say("Type a query.");
      return;
    }
    if (performance.now() - sent < PAUSE) {
      timer = setTimeout(search, PAUSE); // whoever asks faster than that is answered the last one
      return;
    }
    sent = performance.now();
    const mine = new AbortController();
    waiting = mine;
    try {
      await answer(query, mine);
    } catch (error) {
      if (error.name !== "AbortError") fail("The server does not answer; is serve.py still running?");
    } finally {
      if (waiting === mine) waiting = null;
    }
  }

  function remember(query) {
    const address = new URL(location.href);
    address.search = "";
    if (query.trim() && query.length <= LONGEST_ADDRESS) address.searchParams.set("q", query);
    address.searchParams.set("ranker", ranker.value);
    try {
      history.replaceState(null, "", address);
    } catch {
      // some browsers allow few changes a minute: the address is a convenience
    }
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, PAUSE);
  });
  ranker.addEventListener("change", search);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== input && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      input.focus();
      input.select();
    }
  });
  const asked = new URL(location.href).searchParams;
  if ([...ranker.options].some((option) => option.value === asked.get("ranker"))) ranker.value = asked.get("ranker");
  if (asked.get("q")) {
    input.value = asked.get("q");
    search();
  }
})();
