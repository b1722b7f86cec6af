(() => {
  const byId = (id) => document.getElementById(id);
  const [form, input, ranker, status, columns] = ["form", "query", "ranker", "status", "columns"].map(byId);
  const PAUSE = 120; // milliseconds: of queries in quicker succession the last one is sent
  const [BUSY, TRIES] = [503, 5]; // status of a server with too many queries; requests that are sent to it at most
  let timer = 0;
  let pending = null; // AbortController of the query that waits for its answer; a newer query aborts it

  function say(text, wrong = false) {
    status.textContent = text;
    status.classList.toggle("wrong", wrong);
    if (wrong) columns.hidden = true; // the documents there belong to another query
  }

  function movement(hit, ranksBefore) {
    const before = ranksBefore.get(hit.document);
    if (before === undefined) return "not among the first of BM25";
    if (before === hit.rank) return "";
    return before > hit.rank ? `▲ from ${before}` : `▼ from ${before}`;
  }

  function show(content, cardOf) {
    const ranks = new Map(content.left.map((hit) => [hit.document, hit.rank]));
    byId("right-title").textContent = content.ranker;
    byId("left").replaceChildren(...content.left.map(cardOf));
    byId("right").replaceChildren(
      ...content.right.map((hit) => {
        const card = cardOf(hit);
        card.querySelector("header").append(evidenceView.element("span", "moved", movement(hit, ranks)));
        return card;
      }),
    );
    columns.hidden = content.left.length === 0;
  }

  // A busy server is asked again, after longer and longer pauses.
  async function request(path, query, signal) {
    for (let tries = 1; ; tries++) {
      const response = await fetch(path, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ query, ranker: ranker.value }),
        signal,
      });
      const content = await response.json();
      if (response.ok) return content;
      if (response.status !== BUSY || tries === TRIES) throw new Error(content.error);
      await new Promise((done) => setTimeout(done, tries * PAUSE));
    }
  }

  // First the rankings, then their evidence.
  async function answer(query, signal) {
    const rankings = await request("search", query, signal);
    show(rankings, evidenceView.plainCard);
    const candidates = `${rankings.candidates.toLocaleString("en")} candidate${rankings.candidates === 1 ? "" : "s"}`;
    const time = `${rankings.milliseconds.toFixed(1)} ms`;
    say(rankings.left.length ? `${candidates} found and ranked in ${time}` : "No document has a word of this query.");
    const content = await request("evidence", query, signal);
    show(content, evidenceView.card);
    columns.dataset.query = content.query;
    history.replaceState(null, "", `?${new URLSearchParams({ q: query, ranker: content.ranker })}`); // to be bookmarked
  }

  async function search() {
    pending?.abort();
    const query = input.value;
    if (!query.trim()) {
      columns.hidden = true;
      say("Type a query.");
      return;
    }
    const { signal } = (pending = new AbortController());
    try {
      await answer(query, signal);
    } catch (error) {
      if (signal.aborted) return; // a newer query has taken over
      const unreachable = error instanceof TypeError; // of fetch
      say(unreachable ? "The server does not answer; is serve.py still running?" : error.message, true);
    }
  }

  function searchSoon() {
    clearTimeout(timer);
    timer = setTimeout(search, PAUSE);
  }

  input.addEventListener("input", searchSoon);
  ranker.addEventListener("change", searchSoon);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    searchSoon();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== input && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      input.focus();
      input.select();
    }
  });
  const parameters = new URL(location.href).searchParams;
  if ([...ranker.options].some((option) => option.value === parameters.get("ranker"))) ranker.value = parameters.get("ranker");
  if (parameters.get("q")) {
    input.value = parameters.get("q");
    search();
  }
})();
