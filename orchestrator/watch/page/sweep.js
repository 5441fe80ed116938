"use strict";
// The page of a sweep: trials as rows.

function sweepSections(sweep) {
  return [["trials", sweep, () => trials(sweep)]];
}

function linkTo(folder, text) {
  const of = [new URLSearchParams(location.search).get("of"), folder].filter(Boolean).join("/");
  return el("a", { href: `?of=${encodeURIComponent(of)}` }, text);
}

function trials(sweep) {
  const sign = sweep.metric.mode === "max" ? 1 : -1;
  const measured = sweep.trials.filter((trial) => newestOf(trial) !== null && trial.status !== "failed");
  const best = measured.length ? measured.reduce((a, b) => (sign * newestOf(b) > sign * newestOf(a) ? b : a)) : null;
  const states = [...new Set(sweep.trials.map((trial) => trial.status))].map((state) =>
    [sweep.trials.filter((trial) => trial.status === state).length, state]);
  const what = sweep.metric.name;
  const name = what !== "return" ? `${what} of ${sweep.metric.of === "total" ? "the episode" : sweep.metric.of}`
    : sweep.metric.of === "total" ? "sum of all agents' returns" : `mean return of ${sweep.metric.of}`;
  const headings = ["trial", "state", ...sweep.roles, ...sweep.parameters.map(lastPart), "seed", "env steps", what, "best so far", "over env steps"];
  const curves = sweep.trials.map((trial) => trial.curve).filter((curve) => curve.length);
  const frame = curves.length ? sparkFrame(curves) : null;
  return el("section", {},
    el("h1", {}, sweep.name),
    el("p", { class: "facts" }, `${plural(sweep.trials.length, "trial")}: ${states.map(([n, state]) => `${n} ${state.replace("_", " ")}`).join(", ")}. ${what === "return" ? "Return" : "Metric"}: ${name}; ${sweep.metric.mode === "max" ? "higher" : "lower"} is better.`),
    best ? el("p", {}, "Best so far: ", linkTo(best.run_dir, best.id), ` with ${decimals(newestOf(best), 2)}. This is one seed, and the best of many trials is partly luck.`) : null,
    sweep.is_whole ? null : el("p", { class: "note" }, "The files are still being read."),
    el("div", { class: "scroll" }, table(headings, sweep.trials.map((trial) => row(sweep, trial, trial === best, sign, frame)))));
}

function row(sweep, trial, isBest, sign, frame) {
  const values = trial.curve.map((point) => sign * point[1]);
  const highest = Math.max(...values, ...(trial.metric === null ? [] : [sign * trial.metric]));
  const number = trial.id.split("-")[0];
  return el("tr", { class: isBest ? "best" : null, "data-trial": trial.id },
    el("th", { scope: "row" }, trial.run_dir ? linkTo(trial.run_dir, number) : number, trial.cause ? el("small", {}, trial.cause) : null),
    textCell("state", pill(trial.status)),
    sweep.roles.map((role) => textCell(role, trial.roles[role] ?? "–")),
    sweep.parameters.map((key) => cell(lastPart(key), setting(trial.parameters[key]))),
    cell("seed", String(trial.seed)),
    cell("env steps", trial.run_dir ? count(trial.env_steps) : "–"),
    cell(sweep.metric.name, decimals(newestOf(trial), 2)),
    cell("best so far", Number.isFinite(highest) ? decimals(sign * highest, 2) : "–"),
    cell("over env steps", trial.curve.length ? spark(trial.curve, frame) : "–"));
}

function newestOf(trial) { return trial.metric ?? (trial.curve.length ? trial.curve[trial.curve.length - 1][1] : null); }
function lastPart(key) { return key.includes(".") ? key.slice(key.indexOf(".") + 1) : key; }
function setting(value) {
  if (value === undefined || value === null) return "–";
  return typeof value === "number" ? String(+value.toPrecision(3)) : typeof value === "string" ? value : JSON.stringify(value);
}

// All small curves have the same axes, so that rows can be compared.
function sparkFrame(curves) {
  const points = curves.flat();
  const frame = new Frame(150, 30, [0, Math.max(...points.map((p) => p[0])) || 1], around(points.map((p) => p[1])), "steps");
  return Object.assign(frame, { left: 2, right: 4, top: 3, bottom: 3 });
}

function spark(points, frame) {
  const picture = frame.svg(`from ${decimals(points[0][1], 2)} to ${decimals(points[points.length - 1][1], 2)}`);
  picture.classList.add("spark");
  picture.append(curve(frame, { name: "return", points, colour: "var(--c0)", style: "evaluated" }));
  const [x, y] = points[points.length - 1];
  picture.append(svg("circle", { class: "end", cx: frame.px(x), cy: frame.py(y), r: 2.6 }));
  return picture;
}
