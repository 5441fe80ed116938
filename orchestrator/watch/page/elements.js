"use strict";
// Elements and texts. Whatever comes from files becomes a text node or an attribute, never markup.

const SVG = "http://www.w3.org/2000/svg";

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "colour") node.style.setProperty("--c", value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

function el(tag, attributes, ...children) {
  return make(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return make(document.createElementNS(SVG, tag), attributes, children);
}

// Okabe and Ito's colours, by the place of a server, as in the pictures of reports.
const NUM_COLOURS = 6;
function colourOf(index) { return `var(--c${index % NUM_COLOURS})`; }
function dashOf(index) { return ["", "dash1", "dash2", "dash3"][Math.floor(index / NUM_COLOURS) % 4]; }

const MINUS = "−";
const NOISE = 1e-12;  // up to which numbers are 0, but for what sums leave
function signed(text) { return text.replace("-", MINUS); }
function count(value) { return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US"); }
function decimals(value, digits) {
  if (value === null || value === undefined) return "–";
  if (digits === null) return signed(`${+value.toPrecision(3)}`);  // of any size, such as a learning rate
  const isHidden = digits >= 2 && Math.abs(value) > NOISE && !+value.toFixed(digits);
  return isHidden ? decimals(value, null) : rounded(value, digits);
}
function rounded(value, digits) {
  const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return signed(value.toLocaleString("en-US", options));
}
function short(value) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return signed(`${+(value / size).toPrecision(6)}${letter}`);
  }
  return signed(`${+value.toPrecision(6)}`);
}
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return `${parts[0]}:${String(parts[1]).padStart(2, "0")}:${String(parts[2]).padStart(2, "0")}`;
}
function moment(iso) {
  return iso ? new Date(iso).toLocaleString("sv-SE", { dateStyle: "short", timeStyle: "short" }) : "–";
}
// As in reports: as many decimals as tell an interval's ends apart.
function ofWidth(width, largest) {
  return width > Math.max(NOISE, 1e-6 * largest) ? Math.min(6, Math.max(2, Math.ceil(-Math.log10(width)))) : 2;
}
function interval(ends, digits) {
  if (!ends) return "–";
  const [mean, low, high] = ends;
  if (digits === 2 && low !== null) digits = ofWidth(high - low, Math.max(...ends.map(Math.abs)));
  // A line may break before the bracket, not inside.
  const range = low === null ? " [–]" : ` [${decimals(low, digits)},\u00a0${decimals(high, digits)}]`;
  return (low < 0 && high > 0 ? rounded : decimals)(mean, digits) + range;
}
function signedInterval(ends, digits) { return (ends && ends[0] > 0 ? "+" : "") + interval(ends, digits); }
function inMs(seconds) { return `${+(1e3 * seconds).toPrecision(3)} ms`; }
function plural(number, word) { return `${count(number)} ${word}${number === 1 ? "" : "s"}`; }

// "predator_0, predator_1, predator_2, prey" is "predator_0–2, prey".
function listed(agents) {
  const runs = [];
  for (const agent of agents) {
    const [, stem, digits] = /^(.*?)(\d*)$/s.exec(agent);
    const last = runs[runs.length - 1];
    if (digits && last && last.stem === stem && last.end !== "" && +digits === +last.end + 1) last.end = digits;
    else runs.push({ stem, first: digits, end: digits });
  }
  return runs.map((r) => r.stem + (r.first === r.end ? r.first : `${r.first}–${r.end}`)).join(", ");
}

function pill(state) { return el("span", { class: `pill ${state}` }, state.replace("_", " ")); }
