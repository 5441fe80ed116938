"use strict";
// Keeps the page as the newest event says, section by section.

// Where this page lies below the folder that is watched: a link for each folder above it.
function trail() {
  const parts = (new URLSearchParams(location.search).get("of") || "").split("/").filter(Boolean);
  const links = ["all", ...parts.slice(0, -1)].map((name, i) =>
    el("a", { href: i ? `?of=${encodeURIComponent(parts.slice(0, i).join("/"))}` : "?" }, name));
  return parts.length ? [links.flatMap((link) => [link, " / "]), parts[parts.length - 1]] : [];
}

const page = document.getElementById("page");
const connection = document.getElementById("connection");
const drawnFrom = new Map();
let newest = null;

function sectionsOf(data) {
  if (data.kind === "run") return runSections(data);
  if (data.kind === "sweep") return sweepSections(data);
  if (data.kind === "folder") return folderSections(data);
  return [["problem", data.problem, () => el("section", {}, el("h1", {}, "Nothing to show yet"), el("p", {}, data.problem))]];
}

const GAP = 24;
function groupOf(key) { return key.split(" ")[0]; }
function columnsFor(number, width) {
  if (width < 700) return 1;
  return width >= 1000 && number !== 1 && number !== 2 && number !== 4 ? 3 : 2;
}

function draw() {
  if (!newest) return;
  document.title = newest.name ? `${newest.name} · muxrl` : "muxrl watch";
  const style = getComputedStyle(page);
  const width = Math.floor(page.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
  if (width < 100) return;  // a tab that has no size yet; it will be told of one
  const sections = sectionsOf(newest);
  const nodes = sections.map(([key, from, make, kind]) => {
    const isCard = kind === "card";
    const columns = isCard ? columnsFor(sections.filter((s) => s[3] && groupOf(s[0]) === groupOf(key)).length, width) : 1;
    const room = isCard ? Math.floor((width - GAP * (columns - 1)) / columns) - 24 : width;  // less border and padding
    const facts = JSON.stringify([from, room]);
    const before = document.getElementById(`section ${key}`);
    if (before && drawnFrom.get(key) === facts) return before;
    drawnFrom.set(key, facts);
    const node = make(room);
    node.id = `section ${key}`;
    node.className = isCard ? `card of${columns}` : from === null ? "wide head" : "wide";
    for (const old of before ? before.querySelectorAll("details") : []) {
      const same = [...node.querySelectorAll("details")].find((details) => details.id === old.id);
      if (same) same.open = old.open;
    }
    return node;
  });
  const isSame = page.children.length === nodes.length && nodes.every((node, i) => page.children[i] === node);
  if (!isSame) page.replaceChildren(...nodes);
  page.dataset.drawn = String(Number(page.dataset.drawn || 0) + 1);
}

document.getElementById("trail").append(...trail().flat());
const source = new EventSource(`events${location.search}`);
source.onmessage = (event) => { newest = JSON.parse(event.data); connection.textContent = ""; draw(); };
source.onerror = () => {
  const isOver = ["done", "failed", "interrupted"].includes(newest?.status?.state);
  connection.className = isOver ? "over" : "";
  connection.textContent = isOver ? "The run is over, and this page is no longer served; muxrl watch shows it again."
    : "The connection is lost: what you see is no longer live. The page tries to connect again.";
};
new ResizeObserver(draw).observe(page);
