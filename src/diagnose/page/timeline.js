// SPDX-License-Identifier: Apache-2.0
// The timeline of one step on a canvas: a row per rank and lane, measured and predicted, with zoom, pan,
// hover and colours by kind, phase, layer or micro-batch. For a pipeline also a row per rank of its passes,
// in the colours of `hocket simulate schedule --svg`.

function decodeTimeline(t) {  // tracks hold gap, duration, type, micro-batch for every event
  for (const track of t.tracks) {
    const n = track.e.length / 4;
    Object.assign(track, {n, start: new Float64Array(n), end: new Float64Array(n), type: new Int32Array(n), mb: new Int32Array(n)});
    for (let i = 0, now = 0; i < n; ++i) {
      track.start[i] = now += track.e[4 * i];
      track.end[i] = now += track.e[4 * i + 1];
      track.type[i] = track.e[4 * i + 2];
      track.mb[i] = track.e[4 * i + 3];
    }
    delete track.e;
  }
  t.end = Math.max(0, ...t.tracks.map(k => k.n ? k.end[k.n - 1] : 0));
  return t;
}

const PASSES = {F: ["forward (F)", "#9ecae1"], B: ["backward (B)", "#74c476"], I: ["backward, inputs (I)", "#a1d99b"], W: ["backward, weights (W)", "#fdd0a2"],
  gradients: ["gradients", PHASES.grad], optimizer: ["optimizer", PHASES.optimizer]};

// Passes and tasks are two drawings in one place; passes come first if some tasks are missing.
function timeline(host, caption) {
  const views = {tasks: D.timelines};
  const passes = D.timelines.map(t => t.passes).filter(Boolean);
  if (passes.length === D.timelines.length) views.passes = passes;
  const drawn = {};
  const show = view => {
    drawn[view] ||= {box: h("div", {}), caption: h("span", {})};
    body.replaceChildren(drawn[view].box);
    caption.replaceChildren(drawn[view].caption);
    if (!drawn[view].box.firstChild) drawTimeline(drawn[view].box, drawn[view].caption, views[view].map(decodeTimeline), view === "passes");
  };
  const body = h("div", {}), first = views.passes && D.timelines.some(t => t.cut || t.shown < t.ranks) ? "passes" : "tasks";
  if (views.passes) host.append(h("div", {class: "tools"}, seg("Drawing", [["passes", "Passes"], ["tasks", "Tasks"]], first, show)));
  host.append(body);
  show(first);
}

function drawTimeline(host, caption, sets, passes) {
  const measured = sets.find(t => t.source === "run"), predicted = sets.find(t => t.source !== "run");
  const both = measured && predicted;
  let which = both ? "both" : measured ? "run" : "simulation", by = "kind";
  const total = Math.max(...sets.map(t => t.end));
  const main = measured || predicted;

  const lanes = main.tracks.filter(t => passes || t.l === "compute");
  const busy = lanes.map(t => { let s = 0; for (let i = 0; i < t.n; ++i) s += t.end[i] - t.start[i]; return s / main.end; });
  const tasks = sum(main.tracks.map(t => t.n));
  const step = measured ? `Step ${main.step}` : "A simulated step";
  const range = a => { const [lo, hi] = [percent(Math.min(...a)), percent(Math.max(...a))]; return lo === hi ? lo : `${lo} to ${hi}`; };
  let text = passes ? `${step} of ${seconds(main.end / 1e9)} as passes: 1F3 is micro-batch 3 forward through stage 1. In the gaps a rank waits for others, ${range(busy.map(b => 1 - b))} of the step` : `${step}: ${whole(tasks)} tasks in ${seconds(main.end / 1e9)}`;
  if (passes) text += ", apart from waits inside its passes";
  else if (lanes.length === 1) text += `, compute lane busy ${percent(busy[0])} of it`;
  else if (lanes.length && percent(Math.min(...busy)) === percent(Math.max(...busy))) text += `, compute lanes busy ${percent(busy[0])} of it`;
  else if (lanes.length) text += `, compute lanes busy ${percent(Math.min(...busy))} to ${percent(Math.max(...busy))} of it`;
  text += both ? `; below each measured ${passes ? "row" : "lane"} (M) is the simulator's (P), which ends ${Math.abs(predicted.end / measured.end - 1) < 5e-4 ? "at the same time" : percent(Math.abs(predicted.end / measured.end - 1)) + (predicted.end < measured.end ? " earlier" : " later")}.` : ".";
  if (main.shown < main.ranks) text += ` Shown: ${main.shown} of ${main.ranks} ranks${passes ? "" : "; the trace has all"}.`;
  if (main.cut) text += " The end of the step is cut off here; the trace has it.";
  caption.textContent = text;

  let t0 = 0, t1 = total;
  const canvas = h("canvas", {tabindex: 0, role: "img", "aria-label": text + " Arrow keys pan, plus and minus zoom."});
  const frame = h("div", {class: "chart"}, canvas);
  const scroller = h("div", {}, frame);
  const keys = h("div", {});
  const set = (a, b) => {
    const span = clamp(b - a, Math.min(total, 200), total);
    t0 = clamp(a + (b - a - span) / 2, 0, total - span);
    t1 = t0 + span;
    draw();
  };
  const zoom = (factor, at = (t0 + t1) / 2) => set(at - (at - t0) * factor, at + (t1 - at) * factor);
  host.append(h("div", {class: "tools"},
    both ? seg("Which timeline", [["both", "Both"], ["run", "Measured"], ["simulation", "Predicted"]], which, v => { which = v; draw(); }) : null,
    h("span", {class: "ctl"}, "colour by "), seg("Colour by", passes ? [["kind", "pass"], ["layer", "stage"], ["mb", "micro-batch"]] : [["kind", "kind"], ["phase", "phase"], ["layer", "layer"], ["mb", "micro-batch"]], by, v => { by = v; showKeys(); draw(); }),
    h("span", {class: "ctl push"}, h("button", {class: "icon", "aria-label": "Zoom in", onclick: () => zoom(.5)}, "+"), " ",
      h("button", {class: "icon", "aria-label": "Zoom out", onclick: () => zoom(2)}, "−"), " ", h("button", {onclick: () => set(0, total)}, "Whole step"))),
    keys, scroller, h("p", {class: "missing hint"}, `Drag to pan; Ctrl + wheel, double click, or + and − to zoom; hover for the ${passes ? "pass" : "task"}. Tasks too narrow to see are stacked by their share of the time.`));

  const palette = n => i => i < 0 ? "#8b949e" : hsl((205 + i * 360 * (n > 8 ? 1 / n : .381966)) % 360, 48, 44 + 16 * (i % 2));
  // Places in the model, in its order: "embedding", "L0", "L1", ..., "head"; for passes "stage 0", ...
  const order = name => name === "embedding" ? -1 : name === "head" ? Infinity : +name.replace(/^\D+/, "");
  const layers = [...new Set(sets.flatMap(t => t.types.map(y => y[3])))].filter(name => name).sort((a, b) => order(a) - order(b)), batches = 1 + Math.max(0, ...sets.flatMap(t => t.tracks.map(k => k.mb.reduce((a, b) => Math.max(a, b), 0))));
  const ofLayer = palette(layers.length), ofBatch = palette(batches);
  const ofKind = kind => passes ? PASSES[kind.split(";")[0]][1] : kindColor(kind);
  const paint = (t, type, mb) => by === "kind" ? ofKind(type[1]) : by === "phase" ? phaseColor(type[2]) : by === "layer" ? ofLayer(layers.indexOf(type[3])) : ofBatch(mb);
  function showKeys() {
    let items;
    if (by === "kind" && passes) {
      const kinds = new Set(main.types.flatMap(t => t[1].split(";")));
      items = Object.keys(PASSES).filter(k => kinds.has(k)).map(k => PASSES[k]);
    } else if (by === "kind") {
      const time = new Map();
      for (const k of main.tracks) for (let i = 0; i < k.n; ++i) { const kind = main.types[k.type[i]][1]; time.set(kind, (time.get(kind) || 0) + k.end[i] - k.start[i]); }
      const all = [...time].sort((a, b) => b[1] - a[1]);
      items = all.slice(0, 12).map(([k]) => [k, kindColor(k)]);
      if (all.length > 12) items.push([`and ${all.length - 12} more`, "var(--grid)"]);
    } else if (by === "phase") items = [...new Set(main.types.map(t => t[2]))].map(p => [p || "other", phaseColor(p)]);
    else if (by === "layer") items = layers.slice(0, 12).map((name, i) => [name, ofLayer(i)]).concat(layers.length > 12 ? [["…", "var(--grid)"]] : []);
    else items = [...Array(Math.min(batches, 12)).keys()].map(i => ["micro-batch " + i, ofBatch(i)]).concat(batches > 12 ? [["…", "var(--grid)"]] : []);
    keys.replaceChildren(legend(items));
  }
  showKeys();

  // Rows: per rank a heading, then a row per lane of each shown set.
  let rows = [], width = 0, left = 84;
  const HEAD = 22, AXIS = 26;
  function layout() {
    rows = [];
    let y = AXIS;
    const few = main.tracks.length < 4, ROW = few ? 36 : 24, THIN = few ? 28 : 16;
    const use = sets.filter(t => which === "both" || t.source === which);
    const ranks = [...new Set(use.flatMap(t => t.tracks.map(k => k.r)))].sort((a, b) => a - b);
    for (const r of ranks) {
      if (ranks.length > 1 && !passes) { rows.push({y, height: HEAD, head: "rank " + r}); y += HEAD; }
      const names = [...new Set(use.flatMap(t => t.tracks.filter(k => k.r === r).map(k => k.l)))];
      names.sort((a, b) => main.lanes.indexOf(a) - main.lanes.indexOf(b));
      for (const l of names) {
        use.forEach((t, i) => {
          const track = t.tracks.find(k => k.r === r && k.l === l);
          if (!track) return;
          const height = i === 0 ? ROW : THIN;
          rows.push({y, height, track, set: t, label: use.length > 1 && i ? "" : passes ? "rank " + r : l, sign: use.length > 1 ? (t.source === "run" ? "M" : "P") : ""});
          y += height + (i + 1 < use.length ? 1 : 4);
        });
      }
      y += ranks.length > 1 && !passes ? 6 : passes ? 0 : 2;
    }
    return y + 2;
  }
  function firstAfter(a, x) {  // index of the first entry > x
    let lo = 0, hi = a.length;
    while (lo < hi) { const m = (lo + hi) >> 1; if (a[m] > x) hi = m; else lo = m + 1; }
    return lo;
  }
  function render(w) {
    width = w;
    left = w < 520 && which !== "both" ? 66 : 88;
    const height = layout();
    scroller.className = height > 900 ? "scroll" : "";
    const c = canvasOf(canvas, w, height), W = w - left, span = t1 - t0, sx = t => left + (t - t0) / span * W;
    c.textAlign = "center";
    for (const v of ticks(t0, t1, Math.max(2, Math.floor(W / 110)))) {
      const x = sx(v), text = v === 0 ? "0" : tidy(seconds(v / 1e9, span < total * .02 ? 6 : 4));
      c.fillStyle = color("grid");
      c.fillRect(Math.round(x), AXIS - 6, 1, height);
      c.fillStyle = color("muted");
      const half = c.measureText(text).width / 2;
      c.fillText(text, clamp(x, left + half, w - half), 9);
    }
    for (const row of rows) {
      c.textAlign = "left";
      if (row.head) {
        c.fillStyle = color("fg");
        c.font = "600 12px " + color("sans");
        c.fillText(row.head, 0, row.y + row.height / 2 + 2);
        c.font = "12px " + color("sans");
        continue;
      }
      c.fillStyle = color("muted");
      c.fillText(row.label, 0, row.y + row.height / 2);
      if (row.sign) { c.textAlign = "right"; c.fillText(row.sign, left - 7, row.y + row.height / 2); c.textAlign = "left"; }
      c.fillStyle = color("panel");
      c.fillRect(left, row.y, W, row.height);
      const {track, set: t} = row;
      // Tasks narrower than two pixels are collected per pixel column and stacked there by colour, so that
      // heights show shares of the time.
      let column = -1, parts = new Map();
      const flush = () => {
        let top = row.y + row.height;
        const all = Math.max(1, sum([...parts.values()]));
        for (const [shade, part] of [...parts].sort((p, q) => p[0] < q[0] ? -1 : 1)) {
          const tall = part / all * row.height;
          c.fillStyle = shade;
          c.fillRect(column, top - tall, 1, tall);
          top -= tall;
        }
        parts = new Map();
      };
      for (let i = firstAfter(track.end, t0); i < track.n && track.start[i] < t1; ++i) {
        const a = Math.max(left, sx(track.start[i])), b = Math.min(w, sx(track.end[i])), size = b - a;
        const type = t.types[track.type[i]], fillColor = paint(t, type, track.mb[i]);
        if (size < 2) {
          for (let x = Math.floor(a); x <= b; ++x) {
            if (x !== column) { flush(); column = x; }
            const part = Math.max(Math.min(b, x + 1) - Math.max(a, x), x === Math.floor(a) ? .12 : 0);
            if (part > 0) parts.set(fillColor, (parts.get(fillColor) || 0) + part);
          }
          continue;
        }
        c.fillStyle = fillColor;
        c.fillRect(a, row.y, size > 4 ? size - .7 : size, row.height);
        if (passes) {
          // The second half of an overlapping pair is drawn below the first.
          const kinds = type[1].split(";"), tall = row.height / kinds.length, names = type[0].split(";");
          kinds.forEach((kind, j) => {
            if (j > 0 && by === "kind") { c.fillStyle = PASSES[kind][1]; c.fillRect(a, row.y + j * tall, size > 4 ? size - .7 : size, tall); }
            const label = size < 8 ? null : [names[j], names[j].replace(/^\d+/, ""), names[j].replace(/^\d+\D/, "")].find(name => c.measureText(name).width < size - 3);
            if (label) { c.fillStyle = inkOn(by === "kind" ? PASSES[kind][1] : fillColor); c.fillText(label, a + 2, row.y + (j + .5) * tall + .5); }
          });
          continue;
        }
        if (size > 34 && row.height >= 16) {
          const name = by === "kind" || by === "phase" ? type[0] : by === "layer" ? `${type[0]} ${type[3]}` : `${type[0]} mb${track.mb[i]}`;
          if (c.measureText(name).width < size - 6) { c.fillStyle = inkOn(fillColor); c.fillText(name, a + 4, row.y + row.height / 2 + .5); }
        }
      }
      flush();
    }
  }
  const draw = live(frame, render);

  // Pointer.
  let drag = null;
  const spot = e => { const r = canvas.getBoundingClientRect(); return [(e.clientX - r.left) * width / r.width, e.clientY - r.top]; };
  const timeAt = x => t0 + (x - left) / (width - left) * (t1 - t0);
  canvas.addEventListener("pointerdown", e => { drag = {x: spot(e)[0], t0, t1}; canvas.setPointerCapture(e.pointerId); hideTip(); });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointermove", e => {
    const [x, y] = spot(e);
    if (drag) {
      const by = (drag.x - x) / (width - left) * (drag.t1 - drag.t0);
      return set(drag.t0 + by, drag.t1 + by);
    }
    const row = rows.find(r => r.track && y >= r.y && y < r.y + r.height);
    if (!row || x < left) return hideTip();
    const at = timeAt(x), slack = 2 / (width - left) * (t1 - t0), {track, set: t} = row;
    let i = firstAfter(track.end, at - slack);
    if (i < track.n && track.end[i] <= at && i + 1 < track.n && track.start[i + 1] <= at) ++i;
    if (i >= track.n || track.start[i] > at + slack) return hideTip();
    const [name, kind, phase, layer, data, flops] = t.types[track.type[i]], time = track.end[i] - track.start[i];
    const lines = [["duration", seconds(time / 1e9)], ["starts at", seconds(track.start[i] / 1e9, 4)], passes ? ["rank", track.r] : ["lane", `rank ${track.r}, ${track.l}`]];
    if (phase) lines.push(["phase", phase]);
    if (layer) lines.push(passes ? ["stage", layer.replace(/^\D+/, "")] : ["layer", layer]);
    if (track.mb[i] >= 0) lines.push(["micro-batch", track.mb[i]]);
    if (flops > 0 && time > 0) lines.push(["rate", rate(flops / time * 1e9, "FLOP/s")]);
    if (data > 0) lines.push(["moves", bytes(data) + (time > 0 ? ` at ${rate(data / time * 1e9, "B/s")}` : "")]);
    showTip(e.clientX, e.clientY, t.source === "run" ? name : name + " (predicted)", lines.map(([k, v], j) => [k, v, j ? null : ofKind(kind)]));
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", e => zoom(.4, timeAt(spot(e)[0])));
  canvas.addEventListener("wheel", e => {
    if (e.ctrlKey || e.metaKey) { e.preventDefault(); zoom(Math.exp(clamp(e.deltaY, -60, 60) * .008), timeAt(spot(e)[0])); }
    else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) { e.preventDefault(); const by = e.deltaX / width * (t1 - t0); set(t0 + by, t1 + by); }
  }, {passive: false});
  canvas.addEventListener("keydown", e => {
    const step = (t1 - t0) * .15;
    const act = {ArrowLeft: () => set(t0 - step, t1 - step), ArrowRight: () => set(t0 + step, t1 + step), "+": () => zoom(.6), "=": () => zoom(.6), "-": () => zoom(1.7), "0": () => set(0, total)}[e.key];
    if (act) { e.preventDefault(); act(); }
  });
}
