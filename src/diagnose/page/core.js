// SPDX-License-Identifier: Apache-2.0
// Foundation of the page's script: elements, numbers with units, ticks, colours by kind, theme, tooltip,
// redrawing.

const D = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;

// Elements: h("div", {class: "x"}, child, ...); g(...) for SVG.
function fill(node, attrs, kids) {
  for (const [k, v] of Object.entries(attrs || {})) {
    if (v == null || v === false) continue;
    if (k.startsWith("on")) node.addEventListener(k.slice(2), v);
    else if (k === "style" && typeof v === "object") Object.assign(node.style, v);
    else node.setAttribute(k, v === true ? "" : v);
  }
  for (const kid of kids.flat(9)) {
    if (kid != null && kid !== false) node.append(kid.nodeType ? kid : String(kid));
  }
  return node;
}
const h = (tag, attrs, ...kids) => fill(document.createElement(tag), attrs, kids);
const g = (tag, attrs, ...kids) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attrs, kids);
const color = name => getComputedStyle(root).getPropertyValue("--" + name).trim();
const known = x => x != null && Number.isFinite(x);
const last = a => a[a.length - 1];
const sum = a => a.reduce((x, y) => x + (y || 0), 0);
const clamp = (x, lo, hi) => Math.min(hi, Math.max(lo, x));
function median(values) {
  const a = values.filter(known).sort((x, y) => x - y), n = a.length;
  return n ? (a[(n - 1) >> 1] + a[n >> 1]) / 2 : null;
}

// Numbers. Units follow a narrow no-break space.
const NB = "\u202f", MINUS = "\u2212";
function digits(x, n) {  // n significant digits, grouped, true minus
  if (!known(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x), places = clamp(n - 1 - Math.floor(Math.log10(size) + 1e-12), 0, 12);
  let t = size.toFixed(places);
  if (size >= 1000) t = t.replace(/^\d+/, w => w.replace(/\B(?=(\d{3})+$)/g, ","));
  return (x < 0 ? MINUS : "") + t;
}
const trim = t => t.includes(".") ? t.replace(/\.?0+$/, "") : t;
const tidy = t => t.includes(".") ? t.replace(/\.?0+(?=\u202f|$)/, "") : t;  // "5.00 k" to "5 k"
const whole = x => known(x) ? (x < -.5 ? MINUS : "") + String(Math.round(Math.abs(x))).replace(/\B(?=(\d{3})+$)/g, ",") : "–";
function scaled(x, n, steps, unit) {
  if (!known(x)) return "–";
  let i = 0;
  while (i + 1 < steps.length && Math.abs(x) >= steps[i + 1][0] * 0.9995) ++i;
  return digits(x / steps[i][0], n) + NB + steps[i][1] + unit;
}
const SI = [[1, ""], [1e3, "k"], [1e6, "M"], [1e9, "G"], [1e12, "T"], [1e15, "P"]];
const BIN = [[1, "B"], [1024, "KiB"], [1048576, "MiB"], [1073741824, "GiB"], [2 ** 40, "TiB"]];
const bytes = (x, n = 3) => scaled(x, n, BIN, "");
const count = (x, n = 3) =>
  Math.abs(x) < 1000 ? trim(digits(x, n)) : scaled(x, n, [[1, ""], [1e3, "k"], [1e6, "M"], [1e9, "B"], [1e12, "T"]], "");
const rate = (x, unit, n = 3) => scaled(x, n, SI, unit);
// Formats shares and errors; to a tenth of a per cent below ten per cent.
function percent(x, places) {
  if (!known(x)) return "–";
  const v = 100 * Math.abs(x), p = places ?? (v < 9.95 ? 1 : 0);
  return (v > 0 && v < .05 ? "<" + NB + "0.1" : (x < 0 ? MINUS : "") + v.toFixed(p)) + NB + "%";
}
const bpb = x => known(x) ? x.toFixed(3) : "–";  // bits per byte
const signed = x =>
  !known(x) ? "–" : Math.abs(x) < 5e-4 ? "0.0" + NB + "%" : (x >= 0 ? "+" : MINUS) + Math.abs(100 * x).toFixed(Math.abs(x) < .0995 ? 1 : 0) + NB + "%";
const small = x => !x ? "0" : Math.abs(x) >= 1e-4 ? trim(digits(x, 3)) : x.toExponential(1).replace(".0e", "e").replace("e-", "e" + MINUS);
function seconds(s, n = 3) {
  if (!known(s)) return "–";
  const a = Math.abs(s);
  if (a >= 59.95) {
    const t = Math.round(a), m = Math.floor(t / 60), two = x => String(x).padStart(2, "0");
    const text = m < 60 ? `${m}${NB}min${NB}${two(t % 60)}${NB}s` : `${Math.floor(m / 60)}${NB}h${NB}${two(m % 60)}${NB}min`;
    return (s < 0 ? MINUS : "") + text;
  }
  if (a === 0) return "0" + NB + "s";
  const [f, u] = a >= .9995 ? [1, "s"] : a >= .9995e-3 ? [1e3, "ms"] : a >= .9995e-6 ? [1e6, "µs"] : [1e9, "ns"];
  return digits(s * f, n) + NB + u;
}

// Ticks: about n round values inside [lo, hi].
function ticks(lo, hi, n, bases = [1, 2, 5, 10]) {
  if (!(hi > lo)) return [lo];
  const raw = (hi - lo) / Math.max(1, n), p = 10 ** Math.floor(Math.log10(raw));
  const step = p * (bases.find(b => b * p >= raw * .999) || 10), out = [];
  for (let k = Math.ceil(lo / step - 1e-9); k * step <= hi + step * 1e-9; ++k) out.push(k * step);
  return out;
}
function pickStep(lo, hi, n, steps) {
  const step = steps.find(s => (hi - lo) / s <= n) || last(steps), out = [];
  for (let k = Math.ceil(lo / step - 1e-9); k * step <= hi * (1 + 1e-9); ++k) out.push(k * step);
  return out;
}
const CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const clockTicks = (lo, hi, n) => hi - lo < 4 ? ticks(lo, hi, n) : pickStep(lo, hi, n, CLOCK);
function clockText(s, hi) {
  if (hi < 4) return trim(digits(s, 3)) + NB + "s";
  if (s === 0) return "0";
  if (hi <= 150) return Math.round(s) + NB + "s";
  if (hi < 5400) return s % 60 ? `${Math.floor(s / 60)}:${String(Math.round(s % 60)).padStart(2, "0")}` : `${s / 60}${NB}min`;
  return s % 3600 ? `${Math.floor(s / 3600)}:${String(Math.round(s % 3600 / 60)).padStart(2, "0")}` : `${s / 3600}${NB}h`;
}
function logTicks(lo, hi, n) {
  const out = [];
  for (const set of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9]]) {
    out.length = 0;
    for (let e = Math.floor(Math.log10(lo)); e <= Math.log10(hi) + 1; ++e) {
      for (const m of set) { const v = m * 10 ** e; if (v >= lo * .999 && v <= hi * 1.001) out.push(v); }
    }
    if (out.length >= n * .6) break;
  }
  if (out.length < 2) return ticks(lo, hi, n);  // too narrow for any of the sets
  const decades = Math.log10(hi / lo);
  return decades > n ? out.filter((_, i) => i % Math.ceil(out.length / n) === 0) : out;
}
function byteTicks(lo, hi, n) {
  let step = 2 ** Math.ceil(Math.log2((hi - lo) / n));
  const out = [];
  for (let v = 0; v <= hi * 1.0001; v += step) out.push(v);
  return out;
}

// Colours: a hue per family of ops, a shade per op, lighter for dX, darker for dW and backward. Stable by
// name. The data maps ops to families.
const HUES = {
  "products": [216, 56, 56], "expert products": [266, 46, 58], "attention": [27, 76, 55],
  "loss": [352, 58, 56], "element-wise": [120, 36, 52], "embedding": [184, 56, 40],
  "routing": [48, 70, 50], "optimizer": [18, 24, 54], "communication": [322, 50, 54],
  "moving": [210, 7, 66],
};
const cache = new Map();
const familyOf = kind => D.families[kind.replace(/ .*$/, "")] || "other";
function kindColor(kind) {
  if (cache.has(kind)) return cache.get(kind);
  let x = 7;
  for (const c of kind.replace(/ .*$/, "").replace(/_(dx|dw|bwd|backward)$/, "")) x = (x * 31 + c.charCodeAt(0)) >>> 0;
  let [hue, sat, light] = HUES[familyOf(kind)] || [x % 360, 34, 54];
  hue += (x % 7 - 3) * 4;
  light += (x % 5 - 2) * 4;
  if (/_dx/.test(kind)) light += 13;
  else if (/_dw|_bwd|_backward/.test(kind)) light -= 13;
  const text = hsl((hue + 360) % 360, sat, light);
  cache.set(kind, text);
  return text;
}
function hsl(hue, sat, light) {
  const a = sat / 100 * Math.min(light, 100 - light) / 100;
  const f = n => {
    const k = (n + hue / 30) % 12, v = light / 100 - a * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(255 * v).toString(16).padStart(2, "0");
  };
  return "#" + f(0) + f(8) + f(4);
}
function inkOn(hex) {  // black or white, whichever reads better on it
  const [r, gr, b] = [1, 3, 5].map(i => (parseInt(hex.slice(i, i + 2), 16) / 255) ** 2.2);
  return .2126 * r + .7152 * gr + .0722 * b > .3 ? "#10141a" : "#ffffff";
}
const PHASES = {forward: "#4c86d8", backward: "#d9823b", grad: "#c2478f", optimizer: "#8a7a70"};
const phaseColor = p => PHASES[p] || "#8b949e";

// Theme: the system's unless chosen; printing is always light.
const redraws = [];
const system = matchMedia("(prefers-color-scheme: dark)");
const asked = new URLSearchParams(location.search).get("theme");
let chosen = "auto";
try { chosen = localStorage.getItem("hocket-theme") || chosen; } catch (e) { /* file without storage */ }
chosen = asked || chosen;
const isDark = () => chosen === "auto" ? system.matches : chosen === "dark";
function applyTheme() {
  root.setAttribute("data-theme", isDark() ? "dark" : "light");
  for (const draw of redraws) draw();
}
system.addEventListener("change", () => applyTheme());
addEventListener("beforeprint", () => {
  root.setAttribute("data-theme", "light");
  for (const draw of redraws) draw(true);
});
addEventListener("afterprint", () => applyTheme());
root.setAttribute("data-theme", isDark() ? "dark" : "light");

// Calls draw(width) now, and when the host's width or the theme changes.
function live(host, draw) {
  let width = 0;
  // On paper a chart is drawn for the width of a page or of half a page, and scaled from there.
  const run = paper => { if (width > 0) draw(paper === true ? (host.closest(".two") ? 345 : 710) : width); };
  redraws.push(run);
  const measure = () => {
    const w = Math.floor(host.clientWidth);
    if (w > 0 && w !== width) { width = w; run(); }
  };
  new ResizeObserver(() => requestAnimationFrame(measure)).observe(host);
  measure();
  return run;
}

// Tooltip: content is nodes or rows of [label, value, colour].
const tip = h("div", {id: "tip", role: "status"});
document.body.append(tip);
function showTip(x, y, title, rows) {
  tip.replaceChildren(h("b", {}, title), rows.length
    ? h("table", {}, rows.map(([k, v, c]) => h("tr", {},
        h("td", {}, c ? h("span", {class: "sw", style: {background: c, marginRight: "6px", width: "9px", height: "9px"}}) : null, k), h("td", {}, v))))
    : null);
  const w = tip.offsetWidth, hgt = tip.offsetHeight;
  tip.style.left = clamp(x + 14 + w > innerWidth - 8 ? x - w - 14 : x + 14, 6, Math.max(6, innerWidth - w - 6)) + "px";
  tip.style.top = clamp(y + 16 + hgt > innerHeight - 6 ? y - hgt - 12 : y + 16, 6, innerHeight) + "px";
  tip.style.visibility = "visible";
}
const hideTip = () => { tip.style.visibility = "hidden"; };
addEventListener("scroll", hideTip, {passive: true});

// A row of radio buttons that looks like one control.
let segments = 0;
function seg(label, options, value, change) {
  const name = "seg" + ++segments;
  return h("span", {class: "seg ctl", role: "radiogroup", "aria-label": label}, options.map(([id, text], i) => [
    h("input", {type: "radio", name, id: name + i, checked: id === value, onchange: () => change(id)}),
    h("label", {for: name + i}, text)]));
}
const ruler = document.createElement("canvas").getContext("2d");
function textWidth(text, weight = 400) {  // in the charts' 12 pixel type
  ruler.font = `${weight} 12px ${color("sans")}`;
  return ruler.measureText(text).width;
}
const legend = items => h("ul", {class: "legend"}, items.map(([text, mark]) =>
  h("li", {}, typeof mark === "string" ? h("span", {class: "sw", style: {background: mark}}) : mark, text)));
function stroke(stroke, {dash, dot, width = 2, opacity = 1} = {}) {  // a sample of a line, for legends
  return g("svg", {viewBox: "0 0 22 10", "aria-hidden": true},
    g("line", {x1: 0, x2: 22, y1: 5, y2: 5, stroke, "stroke-width": width, "stroke-dasharray": dash, "stroke-opacity": opacity}),
    dot && g("circle", {cx: 11, cy: 5, r: 3, fill: stroke}));
}
// A canvas as sharp as the screen.
function canvasOf(canvas, width, height) {
  const scale = Math.min(3, window.devicePixelRatio || 1);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = height + "px";
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, width, height);
  c.font = "12px " + color("sans");
  c.textBaseline = "middle";
  return c;
}
