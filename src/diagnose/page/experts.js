// SPDX-License-Identifier: Apache-2.0
// Load of the experts: a heat map of layers by experts over training, and the balance over steps.

// 1 is the mean. Blue below, orange above, on a logarithmic scale from a quarter to four times.
function loadColor(x) {
  if (!known(x)) return color("grid");
  const v = clamp(Math.log2(Math.max(x, 1e-3)) / 2, -1, 1), dark = root.getAttribute("data-theme") === "dark";
  const mid = dark ? [44, 51, 61] : [242, 243, 245], low = dark ? [92, 154, 240] : [31, 95, 191], high = dark ? [244, 146, 84] : [200, 78, 20];
  const to = v < 0 ? low : high, a = Math.abs(v) ** .8;
  return "#" + mid.map((m, i) => Math.round(m + (to[i] - m) * a).toString(16).padStart(2, "0")).join("");
}

function expertLoad(host, caption) {
  const {steps, layers, numbers, experts, v} = D.load;  // numbers: indices of the MoE layers
  let at = steps.length - 1;
  const extremes = i => {
    let most = 0, least = Infinity, idle = 0, where = [0, 0];
    v[i].forEach((x, k) => { if (x > most) { most = x; where = [Math.floor(k / experts), k % experts]; } least = Math.min(least, x); if (x < .05) ++idle; });
    return {most, least, idle, where};
  };
  const describe = () => {
    const now = extremes(at), then = extremes(0);
    caption.textContent = `At step ${whole(steps[at])} the busiest expert (layer ${numbers[now.where[0]]}, expert ${now.where[1]}) gets ${trim(digits(now.most, 3))} times the mean and the least busy ${trim(digits(now.least, 2))} times` +
      (at > 0 ? `; at step ${whole(steps[0])} it was ${trim(digits(then.most, 3))} and ${trim(digits(then.least, 2))}` : "") +
      (now.idle ? `; ${now.idle} of ${layers * experts} get almost nothing.` : "; none is idle.");
    canvas.setAttribute("aria-label", "Heat map. " + caption.textContent);
    out.textContent = `step ${whole(steps[at])}`;
  };
  const canvas = h("canvas", {role: "img"}), frame = h("div", {class: "chart"}, canvas), out = h("output", {});
  const slider = h("input", {type: "range", min: 0, max: steps.length - 1, value: at, "aria-label": "Training step", oninput: () => { at = +slider.value; describe(); draw(); }});
  const scale = h("span", {style: {display: "inline-flex", alignItems: "center", gap: "6px"}});
  const paintScale = () => scale.replaceChildren("¼×", ...[.25, .35, .5, .71, 1, 1.41, 2, 2.83, 4].map(x => h("span", {class: "sw", style: {background: loadColor(x), width: "16px", borderRadius: 0, margin: "0 -6px 0 0"}})), h("span", {style: {marginLeft: "6px"}}, "4× the mean"));
  host.append(h("div", {class: "tools"}, steps.length > 1 ? h("span", {class: "ctl"}, slider) : null, out, h("span", {class: "push"}, scale)), frame);
  let geometry = null;
  const draw = live(frame, w => {
    paintScale();
    const left = 62, cell = (w - left) / experts, row = clamp(Math.min(cell * .62, 380 / layers), 5, 34), height = 20 + layers * row + 20;
    const c = canvasOf(canvas, w, height);
    geometry = {left, cell, row, w};
    c.fillStyle = color("muted");
    const every = Math.ceil(14 / row), over = Math.ceil(26 / cell);
    for (let y = 0; y < layers; y += every) { c.textAlign = "right"; c.fillText((y === 0 ? "layer " : "") + numbers[y], left - 8, 20 + (y + .5) * row); }
    for (let x = 0; x < experts; x += over) { c.textAlign = "center"; c.fillText(String(x), left + (x + .5) * cell, 9); }
    c.textAlign = "right";
    c.fillText("expert", left - 8, 9);
    for (let y = 0; y < layers; ++y) for (let x = 0; x < experts; ++x) {
      const value = v[at][y * experts + x], back = loadColor(value), seam = cell > 12 && row > 12 ? 1.5 : cell > 5 ? .5 : 0;
      c.fillStyle = back;
      c.fillRect(left + x * cell, 20 + y * row, cell - seam, row - seam);
      if (cell > 40 && row > 15) { c.fillStyle = inkOn(back); c.textAlign = "center"; c.fillText(known(value) ? value.toFixed(2) : "", left + (x + .5) * cell, 20.5 + (y + .5) * row); }
    }
    c.fillStyle = color("muted"); c.textAlign = "left";
    c.fillText("1.00 = the layer's mean", left, height - 8);
  });
  canvas.addEventListener("pointermove", e => {
    const r = canvas.getBoundingClientRect(), G = geometry, x = Math.floor(((e.clientX - r.left) * G.w / r.width - G.left) / G.cell), y = Math.floor((e.clientY - r.top - 20) / G.row);
    if (x < 0 || y < 0 || x >= experts || y >= layers) return hideTip();
    const value = v[at][y * experts + x];
    showTip(e.clientX, e.clientY, `layer ${numbers[y]}, expert ${x}`, [["load", digits(value, 3) + " × mean", loadColor(value)], ["share of the layer", percent(value / experts)], ["first shown step", digits(v[0][y * experts + x], 3) + " × mean"]]);
  });
  canvas.addEventListener("pointerleave", hideTip);
  describe();

  if (steps.length > 2) {  // max over mean of each layer over training
    host.append(h("h3", {}, "Balance over training"), h("p", {class: "cap"}, "The busiest expert of each layer, as a multiple of the layer's mean: 1 is perfect balance."));
    const series = [...Array(layers).keys()].map(y => ({name: "layer " + numbers[y], x: {step: steps}, color: hsl(216 + (y / Math.max(1, layers - 1)) * 130, 50, 55), width: 1.6, opacity: layers > 12 ? .6 : 1,
      y: v.map(s => Math.max(...s.slice(y * experts, (y + 1) * experts))), text: x => digits(x, 3) + " × mean", hide: layers > 12 && y % Math.ceil(layers / 12), reach: 40}));
    if (layers <= 12) host.append(legend(series.map(s => [s.name, stroke(s.color)])));
    lineChart(host, series, {height: 220, yLabel: "max / mean", zero: false, refs: [{y: 1, label: "", dash: "2 3", tip: false}], label: "Load of the busiest expert over training"});
  }
}
