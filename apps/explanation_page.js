(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const queries = Array.isArray(data) ? data : [data];
  const first = document.getElementById("explained");
  const blank = first.cloneNode(true);

  function fill(box, found) {
    const part = (id) => box.querySelector(`#${id}`);
    part("query").textContent = found.query;
    part("about").textContent = `ranked by ${found.model} on ${found.data}`;
    for (const explanation of found.documents) part("documents").append(evidenceView.card(explanation));
    if (found.difference) {
      part("difference").hidden = false;
      part("difference-title").textContent = found.difference.title;
      part("difference").append(evidenceView.difference(found.difference));
    }
  }

  fill(first, queries[0]);
  let last = first;
  for (const found of queries.slice(1)) {
    const box = blank.cloneNode(true);
    fill(box, found);
    for (const one of [box, ...box.querySelectorAll("[id]")]) one.removeAttribute("id"); // an id is there once
    last.after(box);
    last = box;
  }
  const what = queries.length === 1 ? queries[0].query : `${queries.length} queries`;
  document.title = `${what} – ${queries[0].model}`;
})();
