(() => {
  const { element, card, difference } = evidenceView;
  const queries = JSON.parse(document.getElementById("data").textContent);
  for (const content of queries) {
    const about = element("p", "quiet", `ranked by ${content.model} on ${content.data}`);
    const section = element("section", {}, element("h1", {}, content.query), about);
    if (content.difference) section.append(element("h2", {}, content.difference.title), difference(content.difference));
    section.append(...content.documents.map(card));
    document.getElementById("help").before(section);
  }
  const shown = queries.length === 1 ? queries[0].query : `${queries.length} queries`;
  document.title = `${shown} – ${queries[0].model}`;
})();
