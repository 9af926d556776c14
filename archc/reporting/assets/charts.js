// Charts of a quantity against the length, both axes logarithmic.

const SVG = "http://www.w3.org/2000/svg";
const CHART = { width: 360, height: 254, left: 58, right: 10, top: 12, bottom: 38 };
const MIN_EXPONENT = 8;
const MAX_EXPONENT = 21;
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];

const dashOf = (index) => DASHES[Math.floor(index / 8) % DASHES.length] || (index % 2 ? "6 3" : "");

function shape(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

const log2 = (number) => {
  const bits = number.toString(2).length;
  return bits <= 53 ? Math.log2(Number(number)) : bits - 53 + Math.log2(Number(number >> BigInt(bits - 53)));
};

// Lengths of a curve: powers of two, and steps between.
function lengthsOf(from, to, step) {
  const found = [];
  for (let exponent = from; exponent <= to; exponent += step) found.push(BigInt(Math.round(2 ** exponent)));
  return found;
}

function ticksOf(low, high, step, offset) {
  const found = [];
  for (let at = Math.ceil((low - offset) / step) * step + offset; at <= high + 1e-9; at += step) found.push(at);
  return found;
}

const SECONDS = ["ps", "ns", "µs", "ms", "s", "ks", "Ms", "Gs", "Ts", "Ps", "Es"];

// 10^power picoseconds; hours and days are no powers of ten.
function siSeconds(power) {
  const unit = SECONDS[Math.floor(power / 3)];
  return unit ? `${10 ** (power % 3)} ${unit}` : `1e${power - 12} s`;
}

// What a chart's whole numbers are, and how its ticks and its values are written. Times are in picoseconds.
const UNITS = {
  bytes: { binary: true, tick: (number) => bytesText(number, 0), text: (number) => bytesText(number) },
  flops: { binary: false, tick: (number) => siText(number, 0), text: (number) => siText(number) },
  ps: {
    binary: false, tick: (number) => siSeconds(String(number).length - 1), text: (number) => secondsText(Number(number) / 1e12) },
};

// Ticks of the vertical axis: powers of ten, or of two for bytes, about five of them.
function verticalTicks(low, high, unit) {
  const factor = unit.binary ? 1 : Math.log2(10);
  const steps = unit.binary ? [1, 2, 5, 10, 20] : [1, 2, 3, 6];
  const step = steps.find((each) => (high - low) / (each * factor) <= 5.5) || steps[steps.length - 1];
  return ticksOf(low, high, step * factor, 0).map((at) => {
    const power = BigInt(Math.round(at / factor));
    return { at, text: unit.tick(unit.binary ? 1n << power : 10n ** power) };
  });
}

// `series`: {name, index, at(length)}; a value of null or 0 is not drawn.
function drawChart(svg, { series, current, unit, step = 0.25, label }) {
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${CHART.width} ${CHART.height}`);
  const now = log2(current);
  const from = Math.min(MIN_EXPONENT, Math.floor(now));
  const to = Math.max(MAX_EXPONENT, Math.ceil(now));
  const lengths = lengthsOf(from, to, step);
  const curves = series
    .map((each) => ({ ...each, points: lengths.map((length) => [log2(length), each.at(length)]) }))
    .map((each) => ({ ...each, points: each.points.filter(([, value]) => value !== null && value > 0n) }))
    .map((each) => ({ ...each, points: each.points.map(([x, value]) => [x, log2(value)]) }))
    .filter((each) => each.points.length > 1);
  const heights = curves.flatMap((each) => each.points.map(([, y]) => y));
  const least = heights.length ? Math.min(...heights) : 0;
  const most = heights.length ? Math.max(...heights) : 10;
  const pad = Math.max((most - least) * 0.04, 1);
  const [low, high] = [Math.max(least - pad, 0), most + pad];
  const { width, height, left, right, top, bottom } = CHART;
  const x = (at) => left + ((at - from) / (to - from)) * (width - left - right);
  const y = (at) => height - bottom - ((at - low) / (high - low)) * (height - top - bottom);
  for (const tick of verticalTicks(low, high, unit)) {
    shape(svg, "line", { class: "grid", x1: left, x2: width - right, y1: y(tick.at), y2: y(tick.at) });
    shape(svg, "text", { x: left - 6, y: y(tick.at) + 3.5, "text-anchor": "end" }, tick.text);
  }
  const every = to - from > 16 ? (to - from > 32 ? 10 : 5) : 3;
  for (const at of ticksOf(from, to, every, 1)) {
    shape(svg, "line", { class: "tick", x1: x(at), x2: x(at), y1: height - bottom, y2: height - bottom + 4 });
    const text = at > 30 ? siText(1n << BigInt(at), 0) : tokensText(1n << BigInt(at));
    shape(svg, "text", { x: x(at), y: height - bottom + 17, "text-anchor": "middle" }, text);
  }
  shape(svg, "line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom });
  shape(svg, "text", { class: "unit", x: width - right, y: height - 5, "text-anchor": "end" }, "tokens");
  shape(svg, "line", { class: "now", x1: x(now), x2: x(now), y1: top, y2: height - bottom });
  const told = [];
  for (const each of curves) {
    const path = each.points.map(([px, py], place) => `${place ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`);
    shape(svg, "path", { class: `line c${each.index % 8}`, d: path.join(""), "stroke-dasharray": dashOf(each.index) });
    const value = each.at(current);
    told.push(`${each.name}: ${value === null ? "none" : unit.text(value)}`);
    if (value) shape(svg, "circle", { class: `dot c${each.index % 8}`, cx: x(now), cy: y(log2(value)), r: 3.5 });
  }
  svg.setAttribute("aria-label", `${label} against the length. At ${grouped(current)} tokens: ${told.join("; ")}.`);
}
