// SPDX-License-Identifier: Apache-2.0
// Line charts (SVG) with axes, reference lines, marks and a crosshair, and the scatter chart.

// X axes of the charts.
const AXES = {
  step: {label: "training step", ticks: (a, b, n) => ticks(a, b, n).filter(v => v % 1 === 0), text: v => whole(v), tip: v => "step " + whole(v)},
  time: {label: "training time", ticks: clockTicks, text: clockText, tip: v => seconds(v)},
  tokens: {label: "tokens seen", ticks, text: v => count(v), tip: v => count(v) + " tokens"},
};

// series: {name, x: {step: [...], time: [...]}, y, color, width, opacity, dash, dots, line, area, text, hide}
// opt: {x, height, yLabel, yText, yTip, log, yMin, yMax, zero, refs: [{y, label, color, dash}],
//       marks: [{x: {...}, y, label}], band: {lo, hi, label}, label}
function lineChart(host, series, opt) {
  const box = h("div", {class: "chart"});
  host.append(box);
  let over = opt.x || "step";
  const draw = live(box, width => render(width));
  function render(width) {
    const narrow = width < 520, height = opt.height || (narrow ? 250 : 320);
    const axis = AXES[over];
    const pts = series.map(s => {
      const out = [];
      s.y.forEach((y, i) => { const x = s.x[over][i]; if (known(x) && known(y) && !(opt.log && y <= 0)) out.push([x, y, i]); });
      return out;
    });
    const xs = pts.flat().map(p => p[0]);
    let ys = pts.flatMap((p, i) => series[i].free ? [] : p.map(q => q[1]));
    if (!ys.length) {  // all values are missing, or not positive where the axis is logarithmic
      box.replaceChildren(h("p", {class: "missing"}, "No value of this can be drawn."));
      return;
    }
    for (const r of opt.refs || []) ys.push(r.y);
    if (opt.band) ys.push(opt.band.lo, opt.band.hi);
    const x0 = opt.xZero === false ? Math.min(...xs) : Math.min(0, ...xs), x1 = Math.max(...xs);
    let y0 = Math.min(...ys), y1 = Math.max(...ys);
    if (opt.clip) {  // robust upper end: a few outliers may leave the chart
      const a = ys.slice().sort((p, q) => p - q), q = a[Math.floor(a.length * opt.clip)];
      y1 = Math.max(q + (q - y0) * .25, ...(opt.refs || []).map(r => r.y), opt.band ? opt.band.hi : -Infinity);
    }
    if (opt.zero) y0 = Math.min(0, y0);
    // A single value, or almost one, still gets an axis of some height.
    if (opt.log) { const r = Math.max((y1 / y0) ** .05, 1.01); y0 /= r; y1 *= r; }
    else { const pad = (y1 - y0 || Math.abs(y1) || 1) * .06; if (!opt.zero || y0 < 0) y0 -= pad; y1 += pad; }

    const yTicks = (opt.log ? logTicks : opt.byteTicks ? byteTicks : ticks)(y0, y1, Math.max(3, Math.floor(height / 52)));
    // Enough digits to distinguish the ticks.
    const told = [3, 4, 5, 6].find(n => new Set(yTicks.map(v => digits(v, n))).size === yTicks.length) || 7;
    const yText = v => opt.yText ? opt.yText(v) : trim(digits(v, told));
    const left = Math.ceil(Math.max(...yTicks.map(v => textWidth(yText(v))))) + 12, right = 10, top = 22, bottom = 42;
    const W = width - left - right, H = height - top - bottom;
    const sx = x => left + (x1 > x0 ? (x - x0) / (x1 - x0) : .5) * W;
    const sy = y => top + H - (opt.log ? Math.log(y / y0) / Math.log(y1 / y0) : (y - y0) / (y1 - y0)) * H;
    const clip = "clip" + Math.random().toString(36).slice(2);
    const svg = g("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": opt.label, tabindex: 0},
      g("clipPath", {id: clip}, g("rect", {x: left, y: top - 3, width: W + right, height: H + 6})));
    for (const v of yTicks) {
      svg.append(g("line", {class: "gridline", x1: left, x2: left + W, y1: sy(v), y2: sy(v)}),
        g("text", {x: left - 8, y: sy(v) + 4, "text-anchor": "end"}, yText(v)));
    }
    svg.append(g("line", {class: "axis", x1: left, x2: left + W, y1: top + H, y2: top + H}),
      g("text", {x: 0, y: 11}, opt.yLabel));
    let free = -Infinity;
    for (const v of axis.ticks(x0, x1, Math.max(2, Math.floor(W / (narrow ? 74 : 96))))) {
      const text = axis.text(v, x1), half = textWidth(text) / 2, at = clamp(sx(v), half, width - half);
      if (at - half < free) continue;
      free = at + half + 8;
      svg.append(g("line", {class: "axis", x1: sx(v), x2: sx(v), y1: top + H, y2: top + H + 4}),
        g("text", {x: at, y: top + H + 18, "text-anchor": "middle"}, text));
    }
    svg.append(g("text", {x: left + W, y: height - 5, "text-anchor": "end"}, axis.label));

    const plot = g("g", {"clip-path": `url(#${clip})`});
    svg.append(plot);
    if (opt.band) plot.append(g("rect", {x: left, width: W, y: sy(opt.band.hi), height: Math.max(1, sy(opt.band.lo) - sy(opt.band.hi)), fill: "var(--band)"}));
    for (const r of opt.refs || []) {
      svg.append(g("line", {x1: left, x2: left + W, y1: sy(r.y), y2: sy(r.y), stroke: r.color || "var(--fg)", "stroke-width": 1.3, "stroke-dasharray": r.dash || "5 4"}));
    }
    series.forEach((s, i) => {
      const p = pts[i];
      if (s.line !== false && p.length > 1) {
        plot.append(g("path", {d: "M" + p.map(q => sx(q[0]).toFixed(1) + " " + sy(q[1]).toFixed(1)).join("L"), fill: "none",
          stroke: s.color, "stroke-width": s.width || 2, "stroke-opacity": s.opacity || 1, "stroke-dasharray": s.dash, "stroke-linejoin": "round", "stroke-linecap": "round"}));
      }
      if (s.dots || p.length === 1) {
        const r = s.dots || 3;
        for (const q of p) plot.append(g("circle", {cx: sx(q[0]).toFixed(1), cy: sy(q[1]).toFixed(1), r, fill: s.color, "fill-opacity": s.opacity || 1}));
      }
    });
    // Labels of marks and reference lines are placed where they cover least of curves, lines and labels.
    const boxes = (opt.refs || []).map(r => [left, sy(r.y) - 1, left + W, sy(r.y) + 1, 3]);
    const spots = pts.flatMap((p, i) => p.map(q => [sx(q[0]), sy(q[1]), series[i].hide ? .25 : 1]));
    for (const m of opt.marks || []) if (known(sx(m.x[over]))) boxes.push([sx(m.x[over]) - 7, sy(m.y) - 7, sx(m.x[over]) + 7, sy(m.y) + 7, 9]);
    const cost = b => (b[0] < left || b[2] > left + W + 4 || b[1] < top - 14 || b[3] > top + H ? 1e3 : 0) +
      sum(boxes.map(o => o[0] < b[2] && b[0] < o[2] && o[1] < b[3] && b[1] < o[3] ? 20 * o[4] : 0)) +
      sum(spots.map(s => s[0] > b[0] - 2 && s[0] < b[2] + 2 && s[1] > b[1] - 2 && s[1] < b[3] + 2 ? s[2] : 0));
    function place(text, options) {  // options: [x of the left edge, baseline], best first
      const w = textWidth(text, 600);
      let best = null;
      options(w).forEach(([x, y], i) => {
        const b = [x, y - 11, x + w, y + 4], c = cost(b) + i * .02;
        if (!best || c < best.c) best = {c, x, y, b};
      });
      boxes.push([...best.b, 5]);
      svg.append(g("text", {class: "strong halo", x: best.x, y: best.y}, text));
    }
    for (const m of opt.marks || []) {
      const x = sx(m.x[over]), y = sy(m.y);
      if (!known(x)) continue;
      svg.append(g("circle", {cx: x, cy: y, r: 5, fill: "var(--bg)", stroke: "var(--mark)", "stroke-width": 2}));
      place(m.label, w => [[x - 9 - w, y + 17], [x + 9, y - 9], [x + 9, y + 17], [x - 9 - w, y - 9], [x + 9, y + 32], [x + 9, y - 24]]);
    }
    for (const r of opt.refs || []) {
      if (!r.label) continue;
      const y = sy(r.y);
      place(r.label, w => [0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap(k => { const x = left + W - 2 - w - k * (W - w) / 8; return [[x, y - 6], [x, y + 15]]; }));
    }

    // Crosshair: the nearest x of the densest series; every series shows its nearest point.
    const lead = pts.reduce((a, b) => b.length > a.length ? b : a, []);
    const hair = g("line", {y1: top, y2: top + H, stroke: "var(--muted)", "stroke-width": 1, visibility: "hidden"});
    const dots = g("g", {});
    svg.append(hair, dots);
    let cursor = -1;
    const show = (k, clientX, clientY) => {
      cursor = clamp(k, 0, lead.length - 1);
      const x = lead[cursor][0];
      hair.setAttribute("x1", sx(x)); hair.setAttribute("x2", sx(x)); hair.setAttribute("visibility", "visible");
      dots.replaceChildren();
      const rows = [];
      pts.forEach((p, i) => {
        if (!p.length || series[i].hide) return;
        const q = p.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
        if (Math.abs(sx(q[0]) - sx(x)) > (series[i].reach || 14)) return;
        dots.append(g("circle", {cx: sx(q[0]), cy: clamp(sy(q[1]), top, top + H), r: 3.5, fill: series[i].color, stroke: "var(--bg)", "stroke-width": 1.5}));
        rows.push([series[i].name, (series[i].text || opt.yTip || yText)(q[1]), getComputedStyle(box).getPropertyValue(series[i].color.slice(4, -1)) || series[i].color]);
      });
      for (const r of opt.refs || []) if (r.tip !== false) rows.push([r.name || r.label, (opt.yTip || yText)(r.y)]);
      const others = Object.keys(AXES).filter(k => k !== over && known(series[0].x[k] && series[0].x[k][lead[cursor][2]]));
      const title = [axis.tip(x), ...(lead === pts[0] ? others.map(k => AXES[k].tip(series[0].x[k][lead[cursor][2]])) : [])].slice(0, 2).join(" · ");
      const rect = svg.getBoundingClientRect();
      showTip(clientX ?? rect.left + sx(x), clientY ?? rect.top + top + 20, title, rows);
    };
    const hide = () => { hair.setAttribute("visibility", "hidden"); dots.replaceChildren(); hideTip(); };
    if (lead.length) {
      svg.addEventListener("pointermove", e => {
        const rect = svg.getBoundingClientRect(), px = (e.clientX - rect.left) * width / rect.width;
        if (px < left - 12) return hide();
        let best = 0;
        lead.forEach((p, i) => { if (Math.abs(sx(p[0]) - px) < Math.abs(sx(lead[best][0]) - px)) best = i; });
        show(best, e.clientX, e.clientY);
      });
      svg.addEventListener("pointerleave", hide);
      svg.addEventListener("blur", hide);
      svg.addEventListener("keydown", e => {
        const by = {ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20}[e.key];
        if (!by) return;
        e.preventDefault();
        show(cursor < 0 ? lead.length - 1 : cursor + by);
      });
    }
    box.replaceChildren(svg);
  }
  return {over: key => { over = key; draw(); }};
}

// Mean over a window around each point, narrower towards both ends, so that it never lags.
function smooth(y, window) {
  return y.map((v, i) => {
    if (!known(v)) return null;
    const half = Math.min(i, y.length - 1 - i, Math.round(window / 2));
    const near = y.slice(i - half, i + half + 1).filter(known);
    return sum(near) / near.length;
  });
}

// points: {x, y, r, color, name, rows}; both axes logarithmic in seconds, with the diagonal.
function scatter(host, points, opt) {
  const box = h("div", {class: "chart"});
  host.append(box);
  live(box, width => {
    const height = clamp(width * .8, 260, 400), left = 54, right = 14, top = 22, bottom = 42;
    const W = width - left - right, H = height - top - bottom;
    const all = points.flatMap(p => [p.x, p.y]);
    const lo = Math.min(...all) / 1.8, hi = Math.max(...all) * 2.2;
    const f = v => Math.log(v / lo) / Math.log(hi / lo);
    const sx = v => left + f(v) * W, sy = v => top + H - f(v) * H;
    const svg = g("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": opt.label});
    const short = v => seconds(v, 1);
    let free = -Infinity;
    for (const v of logTicks(lo, hi, 6)) {
      svg.append(g("line", {class: "gridline", x1: left, x2: left + W, y1: sy(v), y2: sy(v)}),
        g("text", {x: left - 7, y: sy(v) + 4, "text-anchor": "end"}, short(v)),
        g("line", {class: "gridline", x1: sx(v), x2: sx(v), y1: top, y2: top + H}));
      if (sx(v) - 26 > free) { svg.append(g("text", {x: Math.min(sx(v), width - textWidth(short(v)) / 2 - 2), y: top + H + 17, "text-anchor": "middle"}, short(v))); free = sx(v) + 26; }
    }
    const k = opt.band;
    svg.append(g("path", {d: `M${sx(lo)} ${sy(lo)}L${sx(lo * (1 + k))} ${sy(lo)}L${sx(hi)} ${sy(hi / (1 + k))}L${sx(hi)} ${sy(hi)}L${sx(hi / (1 + k))} ${sy(hi)}L${sx(lo)} ${sy(lo * (1 + k))}Z`, fill: "var(--band)"}),
      g("line", {x1: sx(lo), y1: sy(lo), x2: sx(hi), y2: sy(hi), stroke: "var(--muted)", "stroke-width": 1.2}),
      g("text", {x: 0, y: 11}, opt.yLabel), g("text", {x: left + W, y: height - 5, "text-anchor": "end"}, opt.xLabel));
    const taken = points.map(p => [sx(p.x) - p.r, sy(p.y) - p.r, sx(p.x) + p.r, sy(p.y) + p.r]);
    const clear = b => b[0] > left && b[2] < left + W && b[1] > top && b[3] < top + H && !taken.some(t => t[0] < b[2] && b[0] < t[2] && t[1] < b[3] && b[1] < t[3]);
    for (const p of points.slice().sort((a, b) => b.r - a.r)) {
      const dot = g("circle", {cx: sx(p.x), cy: sy(p.y), r: p.r, fill: p.color, "fill-opacity": .88, stroke: "var(--bg)", "stroke-width": 1});
      dot.addEventListener("pointermove", e => showTip(e.clientX, e.clientY, p.name, p.rows));
      dot.addEventListener("pointerleave", hideTip);
      svg.append(dot);
      const w = textWidth(p.name), x = sx(p.x), y = sy(p.y);
      for (const [bx, by, anchor] of [[x + p.r + 5, y + 4, "start"], [x - p.r - 5, y + 4, "end"], [x, y - p.r - 5, "middle"], [x, y + p.r + 14, "middle"], [x - p.r * .6, y - p.r - 3, "end"], [x + p.r * .6, y + p.r + 12, "start"]]) {
        const x0 = anchor === "start" ? bx : anchor === "end" ? bx - w : bx - w / 2, b = [x0, by - 11, x0 + w, by + 3];
        if (!clear(b)) continue;
        taken.push(b);
        svg.append(g("text", {x: bx, y: by, "text-anchor": anchor, class: "halo"}, p.name));
        break;
      }
    }
    box.replaceChildren(svg);
  });
}
