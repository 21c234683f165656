// SPDX-License-Identifier: Apache-2.0
// The memory plan: step buffers as rectangles, time across, offset upwards; beside them the persistent
// memory, on the same scale.

const MEMORY = {"kept for backward": "#4c86d8", "forward only": "#9cc0ee", "backward only": "#e3a063", "parameter gradient": "#c9607a",
  "optimizer": "#8a7a70", "workspace": "#a9b3bf", "parameters": "#3d9a70", "optimizer state": "#86c5a4",
  "inputs and outputs": "#b9a24a", "messages": "#7d6bb3", "evaluation": "#5aa3ad"};
const memoryColor = kind => MEMORY[kind] || kindColor(kind);

function memoryPlan(host, caption) {
  const plans = D.memory;
  let plan = plans[0];
  const canvas = h("canvas", {tabindex: 0, role: "img"});
  const frame = h("div", {class: "chart"}, canvas), keys = h("div", {});
  if (plans.length > 1) {
    host.append(h("div", {class: "tools"}, seg("Rank class", plans.map((p, i) => [i, p.name]), 0, i => { plan = plans[i]; describe(); draw(); })));
  }
  host.append(keys, frame);
  let peakAt = 0;
  function describe() {
    // Bytes in use over time, from begins and ends, and their peak.
    const edges = plan.blocks.flatMap(b => [[b[2], b[5]], [b[3], -b[5]]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    let now = 0, most = 0;
    for (const [t, d] of edges) { now += d; if (now > most) { most = now; peakAt = t; } }
    const kept = sum(plan.persistent.map(p => p[1]));
    const then = new Map();
    for (const b of plan.blocks) if (b[2] <= peakAt && peakAt < b[3]) then.set(b[1], (then.get(b[1]) || 0) + b[5]);
    const [kind, size] = [...then].sort((a, b) => b[1] - a[1])[0] || ["", 0];
    caption.textContent = `Step buffers of ${plan.name} take ${bytes(plan.step)}, of which ${percent(most / plan.step)} is in use at the peak` +
      (plan.in_tasks ? "" : ` (${seconds(peakAt)} into the step)`) + (size ? `, most of it ${kind} (${bytes(size)})` : "") +
      (kept ? `; persistent memory takes another ${bytes(kept)}` : "") + `: ${bytes(plan.planned)} planned per rank` +
      (plan.measured > 0 ? `, ${bytes(plan.measured)} measured (${signed(plan.measured / plan.planned - 1)} against the plan).` : ".") +
      (plan.dropped ? ` ${whole(plan.dropped)} small blocks are not drawn.` : "");
    canvas.setAttribute("aria-label", caption.textContent);
    const used = new Map();
    for (const b of plan.blocks) used.set(b[1], 1);
    keys.replaceChildren(legend([...Object.keys(MEMORY).filter(k => used.has(k) || plan.persistent.some(p => p[0] === k)).map(k => [k, memoryColor(k)])]));
  }
  describe();

  let spots = [], geometry = null;
  function render(w) {
    const narrow = w < 520, height = narrow ? 300 : 420, top = 22, bottom = 40;
    const kept = sum(plan.persistent.map(p => p[1])), side = kept ? (narrow ? 58 : 96) : 0, gap = kept ? (narrow ? 14 : 30) : 0;
    const full = Math.max(plan.step, kept, plan.step_measured || 0) * 1.04;
    const yTicks = byteTicks(0, full, 6), left = narrow ? 54 : 64, W = w - left - side - gap - 2, H = height - top - bottom;
    const t1 = Math.max(...plan.blocks.map(b => b[3])), sx = t => left + t / t1 * W, sy = b => top + H - b / full * H;
    const c = canvasOf(canvas, w, height);
    geometry = {left, W, top, H, t1, full, w};
    for (const v of yTicks) {
      if (v > full) continue;
      c.fillStyle = color("grid");
      c.fillRect(left, Math.round(sy(v)), w - left, 1);
      c.fillStyle = color("muted");
      c.textAlign = "right";
      c.fillText(v ? tidy(bytes(v, 3)) : "0", left - 7, sy(v));
    }
    for (const b of plan.blocks) {
      const x = sx(b[2]), y = sy(b[4] + b[5]), bw = Math.max(.6, sx(b[3]) - x), bh = Math.max(.5, sy(b[4]) - y);
      c.fillStyle = memoryColor(b[1]);
      c.fillRect(x, y, bw > 3 ? bw - .6 : bw, bh > 3 ? bh - .6 : bh);
    }
    const line = (v, text, dash, below) => {
      c.strokeStyle = color("fg"); c.lineWidth = 1.3; c.setLineDash(dash);
      c.beginPath(); c.moveTo(left, sy(v)); c.lineTo(left + W, sy(v)); c.stroke(); c.setLineDash([]);
      c.font = "600 12px " + color("sans"); c.textAlign = "left";
      const y = sy(v) + (below ? 11 : -9), tw = c.measureText(text).width;
      c.fillStyle = color("bg"); c.globalAlpha = .8; c.fillRect(left + 3, y - 8, tw + 6, 16); c.globalAlpha = 1;
      c.fillStyle = color("fg"); c.fillText(text, left + 6, y);
      c.font = "12px " + color("sans");
    };
    line(plan.step, "planned " + bytes(plan.step), [], false);
    if (plan.step_measured > 0) line(plan.step_measured, "measured " + bytes(plan.step_measured), [5, 4], true);
    // Time axis.
    c.fillStyle = color("line"); c.fillRect(left, top + H, W, 1);
    c.fillStyle = color("muted");
    const unit = plan.in_tasks ? v => whole(v) : v => v === 0 ? "0" : tidy(seconds(v, 4));
    let free = -1e9;
    for (const v of ticks(0, t1, Math.max(2, Math.floor(W / 100)))) {
      const text = unit(v), half = c.measureText(text).width / 2, x = clamp(sx(v), left + half, left + W - half);
      if (x - half < free) continue;
      free = x + half + 8;
      c.textAlign = "center";
      c.fillText(text, x, top + H + 13);
    }
    c.textAlign = "right";
    c.fillText(plan.in_tasks ? "tasks of the step" : "time in the step", left + W, height - 6);
    c.textAlign = "left";
    c.fillText("step buffers", 0, 6);
    // Persistent memory, on the same scale.
    spots = [];
    let y = top + H;
    for (const [name, size] of plan.persistent) {
      const bh = size / full * H, x = left + W + gap;
      c.fillStyle = memoryColor(name);
      c.fillRect(x, y - bh, side, Math.max(1, bh - 1));
      spots.push([x, y - bh, side, bh, name, size]);
      if (bh > 18 && !narrow) { c.fillStyle = inkOn(memoryColor(name)); c.textAlign = "center"; c.fillText(bytes(size), x + side / 2, y - bh / 2); }
      y -= bh;
    }
    if (kept) { c.fillStyle = color("muted"); c.textAlign = "right"; c.fillText("persistent", w, top + H + 13); }
  }
  const draw = live(frame, render);
  canvas.addEventListener("pointermove", e => {
    const r = canvas.getBoundingClientRect(), G = geometry, x = (e.clientX - r.left) * G.w / r.width, y = e.clientY - r.top;
    const s = spots.find(p => x >= p[0] && x < p[0] + p[2] && y >= p[1] && y < p[1] + p[3]);
    if (s) return showTip(e.clientX, e.clientY, s[4], [["size", bytes(s[5]), memoryColor(s[4])], ["", "survives the step"]]);
    const t = (x - G.left) / G.W * G.t1, off = (G.top + G.H - y) / G.H * G.full;
    let hit = null;
    for (const b of plan.blocks) if (t >= b[2] && t < b[3] && off >= b[4] && off < b[4] + b[5]) hit = b;
    if (!hit) return hideTip();
    showTip(e.clientX, e.clientY, hit[0], [["size", bytes(hit[5]), memoryColor(hit[1])], ["kind", hit[1]], ["offset", bytes(hit[4])],
      ["lives", plan.in_tasks ? `tasks ${whole(hit[2])} to ${whole(hit[3])}` : `${seconds(hit[2])} to ${seconds(hit[3])}`]]);
  });
  canvas.addEventListener("pointerleave", hideTip);
}
