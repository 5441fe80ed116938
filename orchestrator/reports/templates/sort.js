// A click on a heading sorts its column, numbers by value, unknown ones last.
document.querySelectorAll("button.sort").forEach(button => button.addEventListener("click", () => {
  const th = button.closest("th"), table = th.closest("table"), body = table.tBodies[0];
  const column = [...th.parentNode.children].indexOf(th);
  const descending = th.getAttribute("aria-sort") !== "descending";
  th.parentNode.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  th.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const key = row => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  const compare = (a, b) => {
    const missing = x => x === "" || x === "–";
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const order = typeof a === "number" && typeof b === "number"
      ? a - b : String(a).localeCompare(String(b), undefined, {numeric: true});
    return descending ? -order : order;
  };
  [...body.rows].map(row => [key(row), row]).sort((a, b) => compare(a[0], b[0]))
    .forEach(pair => body.append(pair[1]));
}));
