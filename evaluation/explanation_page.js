(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  document.getElementById("query").textContent = data.query;
  document.getElementById("about").textContent = `ranked by ${data.model} on ${data.data}`;
  document.title = `${data.query} – ${data.model}`;
  const documents = document.getElementById("documents");
  for (const explanation of data.documents) documents.append(evidenceView.card(explanation));
  if (data.difference) {
    const section = document.getElementById("difference");
    section.hidden = false;
    document.getElementById("difference-title").textContent = data.difference.title;
    section.append(evidenceView.difference(data.difference));
  }
})();
