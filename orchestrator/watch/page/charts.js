"use strict";
// Line charts with bands, and strips of stacked shares, as SVG.

// Ends and steps of an axis: at most `most` round ticks.
function ticks(low, high, most, bases = [1, 2, 2.5, 5, 10]) {
  const least = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = bases.map((base) => base * power).find((size) => size >= least * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(+(i * step).toPrecision(12));
  return found;
}

function timeTicks(low, high, most) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200];
  const step = steps.find((size) => (high - low) / size <= most) || 86400 * Math.ceil((high - low) / most / 86400);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}

// Powers of ten, and what lies between them where there is room; of numbers above 0.
function logTicks(low, high, most) {
  const tens = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) tens.push(10 ** power);
  const between = (bases) => tens.flatMap((ten) => bases.map((base) => +(base * ten).toPrecision(6))).filter((at) => at >= low && at <= high);
  return [[1, 2, 5], [1, 3]].map(between).find((found) => found.length <= 2 * most) || between([1]);
}

const AXES = {
  steps: { label: "env steps", ticks, text: short, exact: count },
  time: { label: "time of training", ticks: timeTicks, text: duration, exact: duration },
};

class Frame {
  constructor(width, height, x, y, kind, isLog = false) {
    Object.assign(this, { width, height, x, y, isLog, axis: AXES[kind], left: 44, right: 8, top: 6, bottom: 32 });
  }
  px(value) { return this.left + ((value - this.x[0]) / (this.x[1] - this.x[0])) * (this.width - this.left - this.right); }
  py(value) {
    const [at, low, high] = [value, ...this.y].map(this.isLog ? Math.log10 : Number);
    return this.height - this.bottom - ((at - low) / (high - low)) * (this.height - this.top - this.bottom);
  }
  svg(label) {
    return svg("svg", { viewBox: `0 0 ${this.width} ${this.height}`, role: "img", "aria-label": label });
  }
  xAxis(marks) {
    const foot = this.height - this.bottom;
    const most = Math.max(2, Math.floor((this.width - this.left) / 80));
    const parts = this.axis.ticks(this.x[0], this.x[1], most).map((at) => [
      svg("line", { class: "tick", x1: this.px(at), x2: this.px(at), y1: foot, y2: foot + 4 }),
      svg("text", { class: `x ${this.side(at)}`, "data-value": at, x: this.px(at), y: foot + 15 }, this.axis.text(at)),
    ]);
    const lines = marks.filter((mark) => mark.at >= this.x[0] && mark.at <= this.x[1]).map((mark) =>
      svg("line", { class: "mark", x1: this.px(mark.at), x2: this.px(mark.at), y1: this.top, y2: foot }, svg("title", {}, mark.what)));
    return svg("g", {}, parts, lines,
      svg("line", { class: "axis", x1: this.left, x2: this.width - this.right, y1: foot, y2: foot }),
      svg("text", { class: "name", x: this.width - this.right, y: foot + 28 }, this.axis.label));
  }
  side(at) {  // of a label at either end, so that it does not stand out
    if (this.px(at) < 20) return "first";
    return this.px(at) > this.width - 20 ? "last" : "";
  }
  yAxis() {
    const most = Math.max(2, Math.floor(this.height / 42));
    return svg("g", {}, (this.isLog ? logTicks : ticks)(this.y[0], this.y[1], most).map((at) => [
      svg("line", { class: "grid", x1: this.left, x2: this.width - this.right, y1: this.py(at), y2: this.py(at) }),
      svg("text", { class: "y", "data-value": at, x: this.left - 6, y: this.py(at) + 3.5 }, short(at)),
    ]));
  }
}

function around(values, atLeast, isLog) {
  let low = Math.min(...values), high = Math.max(...values);
  if (isLog) return [Math.max(low, 1e-6) / 1.5, Math.max(high, 1e-6) * 1.5];
  if (!(high - low > 1e-9)) { low -= 0.5; high += 0.5; }
  const margin = (high - low) * 0.06;
  return [Math.max(low - margin, atLeast ?? -Infinity), high + margin];
}

function lineOf(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)},${y.toFixed(2)}`).join("");
}

// series: {name, points: [x, y, low?, high?], colour, style, dots, band}; marks: {at, what}.
function chart({ name, width, height, kind, series, marks = [], end, least, digits = 2, isLog }) {
  const drawn = series.filter((one) => one.points.length);
  if (!drawn.length) return el("p", { class: "empty" }, "nothing recorded yet");
  const values = drawn.flatMap((one) => one.points.flatMap((p) => (one.band ? p.slice(1) : [p[1]]))).filter((v) => v !== null && v !== undefined);
  const last = Math.max(end || 0, ...drawn.map((one) => one.points[one.points.length - 1][0]));
  const frame = new Frame(width, height, [0, last || 1], around(values, least, isLog), kind, isLog);
  const picture = frame.svg(`${name}: ${drawn.map((one) => `${one.name} ${decimals(one.points[one.points.length - 1][1], digits)}`).join(", ")}`);
  picture.append(frame.yAxis(), frame.xAxis(marks));
  for (const one of drawn) picture.append(curve(frame, one));
  return readable(picture, frame, drawn, digits);
}

function curve(frame, one) {
  const known = one.points.filter((p) => p[1] !== null);
  const places = known.map((p) => [frame.px(p[0]), frame.py(p[1])]);
  const group = svg("g", { class: `series ${one.style || ""}`, colour: one.colour, "data-name": one.name });
  const ranged = one.band ? known.filter((p) => p[2] !== null && p[2] !== undefined) : [];
  if (ranged.length > 1) {
    const edge = (at) => ranged.map((p) => [frame.px(p[0]), frame.py(p[at])]);
    group.append(svg("path", { class: "band", d: `${lineOf(edge(2))}L${lineOf(edge(3).reverse()).slice(1)}Z` }));
  }
  if (ranged.length === 1) {
    const [x, , low, high] = ranged[0];
    group.append(svg("line", { class: "whisker", x1: frame.px(x), x2: frame.px(x), y1: frame.py(low), y2: frame.py(high) }));
  }
  group.append(svg("path", { class: "line", d: lineOf(places) }));
  if (one.dots || places.length === 1) {
    for (const [x, y] of places) {
      group.append(one.dots === "square"
        ? svg("rect", { class: "dot", x: x - 2.6, y: y - 2.6, width: 5.2, height: 5.2 })
        : svg("circle", { class: "dot", cx: x, cy: y, r: 2.8 }));
    }
  }
  return group;
}

// The values nearest to the pointer, in a line below the picture.
function readable(picture, frame, series, digits) {
  const cursor = svg("line", { class: "cursor", y1: frame.top, y2: frame.height - frame.bottom, visibility: "hidden" });
  const line = el("p", { class: "readout" });
  picture.append(cursor);
  picture.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); line.textContent = ""; });
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * frame.width;
    const nearest = (points) => points.reduce((a, b) => (Math.abs(frame.px(b[0]) - x) < Math.abs(frame.px(a[0]) - x) ? b : a));
    const found = series.map((one) => [one, nearest(one.points)]);
    const at = nearest(found.map(([, point]) => point))[0];
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, frame.px(at));
    cursor.setAttribute("visibility", "visible");
    line.textContent = `${frame.axis.exact(at)}: ` + found.map(([one, p]) => `${one.name} ${one.band ? interval(p.slice(1), digits) : decimals(p[1], digits)}`).join(" · ");
  });
  return el("figure", {}, picture, line);
}

// stretches: [begin_s, end_s, seconds in each state]; drawn from the last state upwards.
function strip({ name, width, height, stretches, states, colour, end }) {
  const frame = new Frame(width, height, [0, end || 1], [0, 1], "time");
  Object.assign(frame, { left: 0, right: 0, top: 0, bottom: 0 });
  const picture = frame.svg(name);
  picture.classList.add("strip");
  picture.style.setProperty("--c", colour);
  picture.append(svg("rect", { class: "ground", x: 0, y: 0, width, height }));
  const parts = states.map(() => "");
  for (const [begin, until, ...seconds] of stretches) {
    const whole = until - begin || 1;  // of which some may be unknown
    const [x1, x2] = [frame.px(begin).toFixed(2), frame.px(until).toFixed(2)];
    let share = 0;
    for (let i = states.length - 1; i >= 0; i -= 1) {
      if (!seconds[i]) continue;
      const [y1, y2] = [frame.py(share).toFixed(2), frame.py(share + seconds[i] / whole).toFixed(2)];
      parts[i] += `M${x1},${y1}H${x2}V${y2}H${x1}Z`;
      share += seconds[i] / whole;
    }
  }
  states.forEach((state, i) => picture.append(svg("path", { class: `state ${state}`, "data-state": state, d: parts[i] })));
  return picture;
}
