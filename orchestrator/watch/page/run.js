"use strict";
// The page of one run.

const STATE_MEANINGS = {
  acting: "the server's agents act",
  learning: "the server learns while its agents act",
  holding: "simulations wait for this server",
  waiting: "simulations wait for another server or a checkpoint",
  silent: "the server gives no report",
  lost: "the server is being started again",
};

// Returns [key, what it is drawn from, how]: a section is drawn again where its data have changed.
function runSections(run) {
  const end = run.servers.flatMap((s) => s.strip.slice(-1).map((last) => last[1])).reduce((a, b) => Math.max(a, b), run.time_s || 0);
  const marks = (axis) => run.marks.map((mark) => ({ at: mark[axis], what: mark.what }));
  const steps = { end: run.env_steps || 0, marks: marks("env_steps") };
  return [
    ["head", [run.name, run.status, run.env_steps, run.episodes, run.env_steps_per_s, run.time_s, run.problems, run.is_whole, run.num_random_episodes, run.num_lost_episodes], () => runHead(run)],
    ["assignment", run.servers.map((s) => [s.id, s.agents]), (width) => assignment(run, width)],
    ["returns", null, () => returnsHead(run)],
    ...run.servers.flatMap((server, index) => server.roles.map((role) =>
      [`returns ${server.id}\n${role.name}`, [role, steps], (width) => returnsCard(server, role, index, steps, width), "card"])),
    ["numbers", run.servers, () => numbers(run)],
    ...(run.metrics.length ? [["metrics", null, () => metricsHead()]] : []),
    ...run.metrics.map((metric) => [`metric ${metric.name}`, [metric, steps], (width) => metricCard(metric, run.servers.map((s) => s.id), steps, width), "card"]),
    ["strips", run.servers.map((s) => [s.strip, s.num_refused, s.num_restarts, s.latency]), (width) => strips(run, end, width)],
    ["speed", null, () => el("h2", {}, "Speed, latency, and policy lag")],
    ["speed of all", run.speed, (width) => speed(run, end, marks("time_s"), width), "card"],
    ...run.servers.map((server, index) => [server, index]).filter(([server]) => server.lag.length).map(([server, index]) =>
      [`speed lag ${server.id}`, [server.lag, steps], (width) => lagCard(server, index, steps, width), "card"]),
    ...run.servers.map((server, index) => [server, index]).filter(([server]) => server.latency.length).map(([server, index]) =>
      [`speed latency ${server.id}`, [server.latency, end], (width) => latencyCard(server, index, end, marks("time_s"), width), "card"]),
    ...(run.servers.some((server) => server.learned.length) ? [["learned", null, () => learnedHead()]] : []),
    ...run.servers.flatMap((server, index) => server.learned.map((one) =>
      [`learned ${server.id}\n${one.name}`, [one, steps], (width) => learnedCard(server, one, index, steps, width), "card"])),
    ["logs", run.logs, (width) => logs(run, width)],
  ];
}

function runHead(run) {
  const status = run.status || { state: "unknown" };
  const random = Object.entries(run.num_random_episodes).map(([server, n]) => `${server} was played at random in ${plural(n, "episode")}`);
  const warnings = Object.entries(status.warnings || {}).flatMap(([server, found]) => found.map((one) =>
    one.text ? `${server ? `${server}: ` : ""}${one.what} ${count(one.num ?? 1)}×, first at ${count(one.env_steps ?? 0)} env steps: ${one.text}` : one.what));
  const notes = [
    ...(status.cause ? [`${status.state}: ${status.cause}`] : []),
    ...run.problems,
    ...(run.num_lost_episodes ? [`${plural(run.num_lost_episodes, "training episode")} cut short, since a process was lost`] : []),
    ...random,
    ...warnings,
  ];
  return el("header", {},
    el("h1", {}, run.name, " ", pill(status.state)),
    el("p", { class: "facts" }, run.assignment.replaceAll("|", " | ").replaceAll(",", ", ")),
    el("dl", { class: "figures" },
      fact("env steps", count(run.env_steps), run.stop ? `until ${run.stop}` : ""),
      fact("episodes", count(run.episodes), ""),
      fact("env steps per second", count(run.env_steps_per_s), ""),
      fact("time of training", duration(run.time_s), status.started_at ? `began ${moment(status.started_at)}` : ""),
      fact("seed", run.seed === null ? "–" : String(run.seed), "")),
    status.checkpoint_problem ? el("p", { class: "alarm", role: "alert" }, status.checkpoint_problem) : null,
    run.is_whole ? null : el("p", { class: "note" }, "The files are still being read."),
    notes.length ? el("ul", { class: "notes" }, notes.map((note) => el("li", {}, note))) : null);
}

function fact(name, value, more) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value, more ? el("small", {}, more) : null));
}

// --- simulation -> servers -> agents ---------------------------------------------------

function assignment(run, width) {
  const isNarrow = width < 620;
  const box = isNarrow ? { x: 30, w: width - 31 } : { x: Math.max(190, Math.round(width * 0.24)), w: 190 };
  const agentsAt = isNarrow ? box.x + 12 : box.x + box.w + 60;
  const perLine = Math.max(12, Math.floor((width - agentsAt - 8) / 6.9));
  const rows = [];
  let top = isNarrow ? 62 : 4;
  for (const [index, server] of run.servers.entries()) {
    const lines = wrapped(listed(server.agents), perLine, 4);
    const height = isNarrow ? 46 + 17 * lines.length : Math.max(46, 17 * lines.length + 14);
    rows.push({ server, index, lines, top, height });
    top += height + 12;
  }
  const height = top - 8;
  const simulation = isNarrow ? { x: 1, y: 4, w: width - 2, h: 44 } : { x: 1, y: height / 2 - 27, w: box.x - 60, h: 54 };
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `the simulation, its servers and their agents: ${run.assignment}`, class: "assignment" });
  const name = (run.simulation || "").split(":").pop();
  for (const row of rows) picture.append(branch(row, box, simulation, isNarrow, agentsAt));
  picture.append(svg("rect", { class: "box", rx: 6, x: simulation.x, y: simulation.y, width: simulation.w, height: simulation.h }),
    svg("text", { class: "strong", x: simulation.x + 12, y: simulation.y + (isNarrow ? 19 : 24) }, "one simulation"),
    svg("text", { class: "dim", x: simulation.x + 12, y: simulation.y + (isNarrow ? 35 : 41) }, cut(name, Math.floor(simulation.w / 7))));
  for (const row of rows) picture.append(serverBox(row, box, agentsAt, isNarrow));
  return el("section", {}, el("h2", {}, "Who plays whom"), picture);
}

function branch(row, box, simulation, isNarrow, agentsAt) {
  const y = row.top + (isNarrow ? 23 : row.height / 2);
  const from = simulation.y + simulation.h / 2;
  const mid = (simulation.x + simulation.w + box.x) / 2;
  const d = isNarrow ? `M14,${simulation.y + simulation.h}V${y}H${box.x}` : `M${simulation.x + simulation.w},${from}C${mid},${from} ${mid},${y} ${box.x},${y}`;
  return svg("g", { colour: isNarrow ? null : colourOf(row.index) }, svg("path", { class: "link", d }),
    isNarrow ? null : svg("path", { class: "link", d: `M${box.x + box.w},${y}H${agentsAt - 10}` }));
}

function fixed(server) {
  return server.is_played_by_others ? "logged actions" : "does not learn";
}

function serverBox(row, box, agentsAt, isNarrow) {
  const { server, top, height, lines } = row;
  const boxHeight = isNarrow ? height : 46;
  const boxTop = isNarrow ? top : top + (height - 46) / 2;
  const textTop = isNarrow ? top + 56 : top + height / 2 - 8.5 * lines.length + 13;
  const learns = server.learns ? server.algorithm : `${server.algorithm}, ${fixed(server)}`;
  return svg("g", { colour: colourOf(row.index), "data-server": server.id },
    svg("rect", { class: "box own", rx: 6, x: box.x, y: boxTop, width: box.w, height: boxHeight }),
    svg("text", { class: "strong", x: box.x + 12, y: boxTop + 19 }, cut(server.id, 24)),
    svg("text", { class: "dim", x: box.x + 12, y: boxTop + 36 }, learns),
    svg("text", { class: "agents", x: agentsAt, y: textTop }, svg("title", {}, server.agents.join(", ")),
      lines.map((line, i) => svg("tspan", { x: agentsAt, dy: i ? 17 : 0 }, line))));
}

function cut(text, most) { return text.length > most ? `${text.slice(0, most - 1)}…` : text; }

function wrapped(text, perLine, most) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const last = lines.length - 1;
    if (lines[last] && `${lines[last]} ${word}`.length > perLine) lines.push(word);
    else lines[last] += (lines[last] ? " " : "") + word;
  }
  const shown = lines.slice(0, most).map((line) => cut(line, perLine));
  if (lines.length > most) shown[most - 1] = cut(`${shown[most - 1]} …`, perLine);
  return shown;
}

// --- returns -----------------------------------------------------------------------------

function key(style, dots, text) {
  const picture = svg("svg", { viewBox: "0 0 30 12", class: "key", "aria-hidden": "true" });
  const points = dots ? [[3, 6], [27, 6]] : [[1, 6], [29, 6]];
  const group = svg("g", { class: `series ${style}`, colour: style.includes("random") ? "var(--random)" : "var(--text)" }, svg("path", { class: "line", d: lineOf(points) }));
  if (dots === "square") group.append(svg("rect", { class: "dot", x: 12.4, y: 3.4, width: 5.2, height: 5.2 }));
  if (dots === "circle") group.append(svg("circle", { class: "dot", cx: 15, cy: 6, r: 2.8 }));
  picture.append(group);
  return el("li", {}, picture, text);
}

function returnsHead() {
  return el("section", {}, el("h2", {}, "Returns"),
    el("p", { class: "caption" }, "Return: the sum of an agent's rewards in an episode, averaged over the agents named. Random in its place: this server's agents act uniformly at random, all others as learned. Bands and bars: 95 % intervals over episodes."),
    el("ul", { class: "keys" }, key("evaluated", "circle", "evaluated, all as learned"), key("random", "square", "random in its place"), key("training", "", "training, exploration included")));
}

function title(server, index, name, more) {
  return el("h3", { colour: colourOf(index) }, el("i", { class: "swatch" }), server.id, name ? ` · ${name}` : "", el("small", {}, more));
}

function returnsCard(server, role, index, steps, width) {
  const colour = colourOf(index);
  const verdict = server.learns ? role.verdict : fixed(server);
  const kind = verdict.includes("not than") ? "" : verdict.split(" ")[0];  // no green for half of it
  const words = role.advantage ? `advantage ${signedInterval(role.advantage, 2)}, ${verdict}` : verdict || "not yet compared with random in its place";
  return el("article", { "data-server": server.id, "data-role": role.name },
    title(server, index, role.name, `${server.algorithm}, ${role.agents.length > 1 ? plural(role.agents.length, "agent") : role.agents[0]}`),
    el("p", { class: `verdict ${kind}` }, words),
    chart({ name: `returns of ${server.id}`, width, height: 220, kind: "steps", ...steps, series: [
      { name: "training", points: role.training, colour, style: `training ${dashOf(index)}` },
      { name: "random", points: role.random, colour: "var(--random)", style: "random", dots: "square", band: true },
      { name: "evaluated", points: role.evaluated, colour, style: `evaluated ${dashOf(index)}`, dots: "circle", band: true },
    ] }));
}

function numbers(run) {
  const last = (points) => (points.length ? points[points.length - 1] : null);
  const hasUntrained = run.servers.some((server) => server.roles.some((role) => role.untrained));
  const rows = run.servers.flatMap((server, index) => server.roles.map((role) => el("tr", {},
    el("th", { scope: "row", colour: colourOf(index) }, el("i", { class: "swatch" }), server.id, role.name ? ` · ${role.name}` : ""),
    textCell("algorithm", server.algorithm),
    cell("training", decimals(last(role.training)?.[1], 2)),
    cell("evaluated", interval(last(role.evaluated)?.slice(1), 2)),
    cell("random", interval(last(role.random)?.slice(1), 2)),
    hasUntrained ? cell("untrained", interval(role.untrained, 2)) : [],
    cell("advantage", signedInterval(role.advantage, 2)),
    textCell("verdict", server.learns ? role.verdict || "–" : fixed(server)))));
  return el("section", {}, table(
    ["server", "algorithm", "training", "evaluated", "random in its place", ...(hasUntrained ? ["untrained in its place"] : []), "advantage", "verdict"], rows),
    hasUntrained ? el("p", { class: "caption" }, "Untrained in its place: this server's agents act with the weights that it began with. Advantage: the evaluated return less that of random agents, on the same episodes. In brackets: 95 % intervals over episodes.") : null);
}

function metricsHead() {
  return el("section", {}, el("h2", {}, "Metrics"),
    el("p", { class: "caption" }, "Numbers that the simulation gives for each episode; for a server, the mean over those of its agents that have the metric. Dots: evaluated, all as learned. Thin: training, exploration included."));
}

function metricCard(metric, servers, steps, width) {
  const series = metric.of.flatMap(({ server, training, evaluated }) => {
    const index = servers.indexOf(server);
    const colour = server === null ? "var(--text)" : colourOf(index);
    const dash = server === null ? "" : dashOf(index);
    const who = server === null ? "episode" : server;
    return [
      { name: `${who} in training`, points: training, colour, style: `training ${dash}` },
      { name: who, points: evaluated, colour, style: `evaluated ${dash}`, dots: "circle" },
    ];
  });
  return el("article", { "data-metric": metric.name },
    el("h3", {}, metric.name, el("small", {}, metric.of.map((one) => one.server === null ? "of the episode" : one.server).join(", "))),
    chart({ name: metric.name, width, height: 180, kind: "steps", ...steps, series }));
}

function cell(name, ...children) { return el("td", { "data-name": name }, ...children); }
function textCell(name, ...children) { return el("td", { "data-name": name, class: "text" }, ...children); }

// Each heading stands as the cells of its column do.
function table(headings, rows) {
  const first = rows.length ? [...rows[0].children] : [];
  const head = headings.map((heading, i) => el("th", { scope: "col", class: first[i]?.className || null }, heading));
  return el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
}

// --- who waits for whom --------------------------------------------------------------------

function strips(run, end, width) {
  const recorded = run.servers.filter((server) => server.strip.length);
  const head = el("h2", {}, "Who waits for whom");
  if (!recorded.length) return el("section", {}, head, el("p", { class: "empty" }, run.time_s === null ? "nothing recorded yet" : "This run recorded no states."));
  const rows = run.servers.map((server, index) => {
    const sums = run.states.map((_, i) => server.strip.reduce((sum, stretch) => sum + stretch[2 + i], 0));
    const whole = sums.reduce((a, b) => a + b, 0) || 1;
    const words = run.states.map((state, i) => [state, sums[i] / whole]).filter(([, share]) => share >= 0.005).map(([state, share]) => `${state} ${Math.round(100 * share)} %`);
    return el("div", { class: "striprow", "data-server": server.id },
      el("p", {}, el("b", {}, server.id), ` ${words.join(", ")}`, latency(server),
        server.num_restarts ? el("span", { class: "refused" }, `, started again ${server.num_restarts}×`) : "",
        server.num_refused ? el("span", { class: "refused" }, `, ${plural(server.num_refused, "item")} refused`) : ""),
      strip({ name: `${server.id}: ${words.join(", ")}`, width, height: 34, stretches: server.strip, states: run.states, colour: colourOf(index), end }));
  });
  const frame = new Frame(width, 36, [0, end || 1], [0, 1], "time");
  Object.assign(frame, { left: 0, right: 0, top: 0, bottom: 34 });
  const axis = frame.svg("time of training");
  axis.append(frame.xAxis([]));
  const keys = run.states.map((state) => el("li", {}, sample(state), el("b", {}, state), ` ${STATE_MEANINGS[state]}`));
  return el("section", {}, head, patterns(), el("ul", { class: "keys" }, keys), rows, axis);
}

function sample(state) {
  return svg("svg", { viewBox: "0 0 18 12", class: "key strip", colour: "var(--text)", "aria-hidden": "true" },
    svg("rect", { class: "ground", width: 18, height: 12 }), svg("rect", { class: `state ${state}`, width: 18, height: 12 }));
}

function patterns() {
  const hatch = (id, lines) => svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, lines.map((d) => svg("path", { class: "hatch", d })));
  return svg("svg", { class: "patterns", "aria-hidden": "true" }, svg("defs", {},
    hatch("waiting", ["M-1,1L1,-1M0,6L6,0M5,7L7,5"]), hatch("silent", ["M1,3L3,3"]), hatch("lost", ["M-1,1L1,-1M0,6L6,0M5,7L7,5M-1,5L1,7M0,0L6,6M5,-1L7,1"])));
}

function speed(run, end, marks, width) {
  return el("article", {}, el("h3", {}, "Env steps per second", el("small", {}, "of the whole run, mean of the last 10 s")),
    chart({ name: "env steps per second", width, height: 180, kind: "time", end, marks, least: 0, digits: 0, series: [
      { name: "env steps per second", points: run.speed, colour: "var(--text)", style: "evaluated" }] }));
}

function lagCard(server, index, steps, width) {
  return el("article", { "data-lag": server.id }, title(server, index, "policy lag", "how many updates old the actions were that the server learned from: mean, and highest (thin)"),
    chart({ name: `policy lag of ${server.id}`, width, height: 180, kind: "steps", ...steps, least: 0, series: [
      { name: "highest", points: server.lag.map(([x, , high]) => [x, high]), colour: colourOf(index), style: "training" },
      { name: "mean", points: server.lag.map(([x, mean]) => [x, mean]), colour: colourOf(index), style: `evaluated ${dashOf(index)}` }] }));
}

function latency(server) {
  const newest = server.latency[server.latency.length - 1];
  return newest ? `; latency p50 ${inMs(newest[1])}, p99 ${inMs(newest[2])}` : "";
}

function latencyCard(server, index, end, marks, width) {
  return el("article", { "data-latency": server.id }, title(server, index, "latency", "ms from a message to its answer, including the time that the server held it: p50, and p99 (thin)"),
    chart({ name: `latency of ${server.id} in ms`, width, height: 180, kind: "time", end, marks, isLog: true, series: [
      { name: "p99", points: server.latency.map(([x, , p99]) => [x, 1e3 * p99]), colour: colourOf(index), style: "training" },
      { name: "p50", points: server.latency.map(([x, p50]) => [x, 1e3 * p50]), colour: colourOf(index), style: `evaluated ${dashOf(index)}` }] }));
}

// --- what learners say of themselves ---------------------------------------------------------

function learnedHead() {
  return el("section", {}, el("h2", {}, "What learners report"),
    el("p", { class: "caption" }, "Losses, entropy and all other numbers that a trainer reports of its updates, if they change; a line for each policy. A loss need not fall: its targets change as the policies change."));
}

function learnedCard(server, one, index, steps, width) {
  return el("article", { "data-learned": `${server.id} ${one.name}` },
    title(server, index, one.name, one.of.length > 1 ? one.of.map(({ policy }) => policy).join(", ") : ""),
    chart({ name: `${one.name} of ${server.id}`, width, height: 150, kind: "steps", ...steps, digits: null, series: one.of.map(({ policy, points }, place) =>
      ({ name: policy || server.id, points, colour: colourOf(index), style: `evaluated ${dashOf(NUM_COLOURS * place)}` })) }));
}

// --- logs -----------------------------------------------------------------------------------

function logs(run, width) {
  const lines = (log) => log.lines.map((line) => el("span", { class: / (WARNING|ERROR|CRITICAL) |Traceback|Error:/.test(line) ? "bad" : null }, `${line}\n`));
  return el("section", {}, el("h2", {}, "Last lines of the logs"),
    run.logs.length ? run.logs.map((log, i) => el("details", { id: `log ${log.process}`, open: width >= 700 && i < run.servers.length },
      el("summary", {}, log.process), el("pre", {}, lines(log)))) : el("p", { class: "empty" }, "The logs are empty."));
}
