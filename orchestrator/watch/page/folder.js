"use strict";
// The page of a folder: runs and sweeps as rows, which can be filtered.

const wanted = { text: "", algorithm: "", state: "", from: "", until: "" };

function folderSections(folder) {
  const algorithms = [...new Set(folder.entries.flatMap(algorithmsOf))].sort();
  const states = [...new Set(folder.entries.map(stateOf))].sort();
  return [
    ["filters", [folder.name, algorithms, states], () => filters(folder, algorithms, states)],
    ["entries", [folder, wanted], () => entries(folder)],
  ];
}

function algorithmsOf(entry) { return entry.kind === "run" ? entry.servers.map((server) => server.algorithm) : entry.templates || []; }
function stateOf(entry) { return entry.state || entry.kind; }
function assignmentOf(entry) {
  if (entry.kind === "run") return entry.servers.map((server) => `${server.id} (${server.algorithm}): ${listed(server.agents)}`).join(" | ");
  return entry.kind === "sweep" ? `sweep of ${Object.entries(entry.counts).map(([state, n]) => `${n} ${state.replace("_", " ")}`).join(", ")}: ${entry.templates.join(", ")}` : "";
}

function filters(folder, algorithms, states) {
  const set = (name) => (event) => { wanted[name] = event.target.value; draw(); };
  const choice = (name, all, values) => el("select", { "data-filter": name, onchange: set(name), "aria-label": name },
    el("option", { value: "" }, all), values.map((value) => el("option", { value, selected: value === wanted[name] }, value.replace("_", " "))));
  return el("header", {}, el("h1", {}, folder.name),
    el("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
      el("input", { type: "search", placeholder: "name, server or agent", value: wanted.text, "data-filter": "text", oninput: set("text"), "aria-label": "name, server or agent" }),
      choice("algorithm", "all algorithms", algorithms), choice("state", "all states", states),
      el("label", {}, "from ", el("input", { type: "date", value: wanted.from, "data-filter": "from", oninput: set("from") })),
      el("label", {}, "until ", el("input", { type: "date", value: wanted.until, "data-filter": "until", oninput: set("until") }))));
}

function isWanted(entry) {
  const day = entry.began_at ? moment(entry.began_at).slice(0, 10) : "";
  return `${entry.name} ${assignmentOf(entry)}`.toLowerCase().includes(wanted.text.toLowerCase())
    && (!wanted.algorithm || algorithmsOf(entry).includes(wanted.algorithm))
    && (!wanted.state || stateOf(entry) === wanted.state)
    && (!wanted.from || day >= wanted.from) && (!wanted.until || day <= wanted.until);
}

function entries(folder) {
  const shown = folder.entries.filter(isWanted);
  const rows = shown.map((entry) => el("tr", { "data-entry": entry.name },
    el("th", { scope: "row" }, linkTo(entry.name, entry.name), entry.cause ? el("small", {}, entry.cause) : null),
    textCell("state", pill(stateOf(entry))),
    textCell("assignment", assignmentOf(entry) || "–"),
    cell("env steps", entry.kind === "broken" ? "–" : count(entry.env_steps)),
    cell("evaluated", entry.kind === "run" ? entry.servers.filter((s) => s.evaluated !== null).map((s) => el("div", {}, `${s.id} ${decimals(s.evaluated, 2)}`)) : "–"),
    cell("began", moment(entry.began_at))));
  return el("section", {},
    el("p", { class: "facts" }, `${count(shown.length)} of ${count(folder.entries.length)} runs and sweeps`, folder.num_left_out ? `; ${count(folder.num_left_out)} older ones are not shown` : ""),
    rows.length ? table(["name", "state", "assignment", "env steps", "evaluated return", "began"], rows) : el("p", { class: "empty" }, "none"));
}
