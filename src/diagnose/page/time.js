// SPDX-License-Identifier: Apache-2.0
// Where the time went: one stacked bar and a table by kind of task, predicted beside measured.

const peakName = (D.num.peak_what || "machine's rate").replace(/^the /, "");
// Formats a rate as a fraction of the peak; above it as "more than", since a peak is measured, too.
const ofPeak = r => r <= 1.005 * D.num.peak_flops ? `${percent(r / D.num.peak_flops)} of the ${peakName}`
  : `more than the ${rate(D.num.peak_flops, "FLOP/s")} of the ${peakName}`;

const tally = n => Math.abs(n - Math.round(n)) < 1e-6 ? whole(n) : digits(n, 3);

function kindRows() {
  return D.kinds.map(([kind, lane, calls, time, flops, data, predicted, waiting]) =>
    ({kind, lane, calls, time, flops, data, predicted, waiting, color: kindColor(kind), comm: familyOf(kind) === "communication"}))
    .sort((a, b) => (b.time || b.predicted || 0) - (a.time || a.predicted || 0));
}

function timeByKind(host) {
  const rows = kindRows(), busy = sum(rows.filter(r => r.lane === "compute").map(r => r.time));
  const total = sum(rows.map(r => r.time)), step = D.num.kinds_step_s;
  const idle = known(step) ? Math.max(0, step - busy) : null;
  const base = known(step) ? Math.max(step, busy) : total;
  const compute = rows.filter(r => r.lane === "compute" && r.time > 0);
  const families = new Map();
  for (const r of compute) {
    const f = familyOf(r.kind);
    families.set(f, (families.get(f) || 0) + r.time);
  }
  const order = [...families].sort((a, b) => b[1] - a[1]), first = order[0];
  const gemm = compute.filter(r => /products|loss/.test(familyOf(r.kind))), gemmTime = sum(gemm.map(r => r.time));
  const gemmRate = sum(gemm.map(r => r.flops)) / gemmTime;
  let text = `${first[0][0].toUpperCase() + first[0].slice(1)} take${first[0].endsWith("s") ? "" : "s"} ${percent(first[1] / base)} of a step`;
  if (order[1]) text += `, ${order[1][0]} ${percent(order[1][1] / base)}`;
  if (gemmRate > 0 && known(D.num.peak_flops)) text += `; matrix products run at ${rate(gemmRate, "FLOP/s")}, ${ofPeak(gemmRate)}`;
  if (known(idle)) text += idle / base < .005 ? "; the compute lane is never idle" : `; the compute lane is idle ${percent(idle / base)} of the time`;
  const ranks = D.num.world > 1 ? `, mean of ${D.num.world} ranks` : "";
  host.append(h("p", {class: "cap"}, text + "."));

  // Tasks of one family are adjacent, in the order of the legend.
  const stackRows = order.flatMap(([f]) => compute.filter(r => familyOf(r.kind) === f));
  const stack = h("div", {class: "stack", role: "img", "aria-label": "Share of every kind of task in a step"}, stackRows.map(r => {
    const part = h("i", {style: {background: r.color, flex: `${1000 * r.time / base} 0 0`}});
    part.addEventListener("pointermove", e => showTip(e.clientX, e.clientY, r.kind, [["per step", seconds(r.time)], ["share of the step", percent(r.time / base)]]));
    part.addEventListener("pointerleave", hideTip);
    return part;
  }), known(idle) && idle / base >= .005 ? h("i", {style: {background: "var(--grid)", flex: `${1000 * idle / base} 0 0`}, title: "idle"}) : null);
  host.append(stack, legend([...order.map(([f, t]) => {
    const hue = HUES[f];
    return [`${f} ${percent(t / base)}`, hue ? hsl(...hue) : compute.find(r => familyOf(r.kind) === f).color];
  }), ...(known(idle) && idle / base >= .005 ? [["idle " + percent(idle / base), "var(--grid)"]] : [])]));

  const most = Math.max(...rows.map(r => Math.max(r.time || 0, r.predicted || 0)));
  const withPrediction = rows.some(r => known(r.predicted)), withWaiting = D.simulated && rows.some(r => r.waiting > 0);
  const small = rows.filter(r => r.time / total < .0005 && !(r.predicted / total > .002)), shown = rows.filter(r => !small.includes(r));
  const line = (r, name) => {
    const share = r.time / base;
    return h("tr", {}, h("td", {}, h("span", {class: "sw", style: {background: r.color, marginRight: "8px"}}), h("code", {}, name || r.kind)),
      h("td", {class: "barcell wide"}, h("span", {class: "bar"},
        h("i", {style: {width: 100 * (r.time || 0) / most + "%", background: r.color}}),
        known(r.predicted) ? h("u", {style: {left: `calc(${100 * r.predicted / most}% - 1px)`}, title: "predicted"}) : null)),
      h("td", {}, seconds(r.time)), h("td", {}, percent(share)), withWaiting ? h("td", {}, seconds(r.waiting)) : null,
      h("td", {class: "wide"}, tally(r.calls)),
      h("td", {}, r.time > 0 && r.flops > 0 && !r.comm ? digits(r.flops / r.time / 1e9, 3) : "–"),
      h("td", {class: "wide"}, r.time > 0 && r.data > 0 ? digits(r.data / r.time / 1e9, 3) : "–"),
      withPrediction ? [h("td", {class: "wide"}, seconds(r.predicted)), h("td", {}, known(r.predicted) && r.time > 0 ? signed(r.predicted / r.time - 1) : "–")] : null);
  };
  const fold = list => ({kind: `${list.length} more kinds`, lane: "", color: "var(--grid)", calls: sum(list.map(r => r.calls)), time: sum(list.map(r => r.time)), flops: sum(list.map(r => r.flops)), data: sum(list.map(r => r.data)), waiting: list.some(r => known(r.waiting)) ? sum(list.map(r => r.waiting)) : null, predicted: list.some(r => known(r.predicted)) ? sum(list.map(r => r.predicted)) : null});
  const all = {time: total, waiting: sum(rows.map(r => r.waiting)), predicted: sum(rows.map(r => r.predicted)), calls: sum(rows.map(r => r.calls)), flops: sum(rows.map(r => r.comm ? 0 : r.flops))};
  host.append(h("div", {class: "tablewrap"}, h("table", {class: "data"},
    h("thead", {}, h("tr", {}, h("th", {}, "kind of task"), h("th", {class: "wide"}, ""), h("th", {}, "per step"), h("th", {}, "of step"), withWaiting ? h("th", {}, "waiting") : null, h("th", {class: "wide"}, "tasks"),
      h("th", {}, "GFLOP/s"), h("th", {class: "wide"}, "GB/s"), withPrediction ? [h("th", {class: "wide"}, "predicted"), h("th", {title: "predicted / measured − 1"}, "error")] : null)),
    h("tbody", {}, shown.map(r => line(r)), small.length ? line(fold(small), `${small.length} smaller kinds`) : null,
      h("tr", {class: "sum"}, h("td", {}, "all tasks"), h("td", {class: "wide"}), h("td", {}, seconds(total)), h("td", {}, percent(total / base)), withWaiting ? h("td", {}, seconds(all.waiting)) : null,
        h("td", {class: "wide"}, tally(all.calls)), h("td", {}, all.flops > 0 ? digits(all.flops / busy / 1e9, 3) : "–"), h("td", {class: "wide"}),
        withPrediction ? [h("td", {class: "wide"}, seconds(all.predicted)), h("td", {}, signed(all.predicted / total - 1))] : null)))),
    h("p", {class: "missing"}, (D.simulated ? `The simulated step${ranks}. ` : `Mean of ${whole(D.num.kinds_steps)} traced step${D.num.kinds_steps === 1 ? "" : "s"}${ranks}. `) +
      (withPrediction ? "The upright tick in a bar is the prediction. " : "") +
      (rows.some(r => r.comm) ? `Communication overlaps with computation${D.simulated ? "" : ", and its time includes waiting for others"}, so the shares may add up to more than 100${NB}%.` : "") +
      (withWaiting ? " Waiting is the time of a task in its lane before its transfer begins: until all members of its group are ready, or its message is sent." : "")));
}

function predictionByKind(host) {
  const rows = kindRows().filter(r => r.time > 0 && r.predicted > 0);
  if (!rows.length) return false;
  // Communication includes waiting for others, which is not its own error.
  const own = rows.some(r => !r.comm) ? rows.filter(r => !r.comm) : rows;
  const total = sum(rows.map(r => r.time)), most = own.reduce((a, b) => Math.abs(b.predicted - b.time) > Math.abs(a.predicted - a.time) ? b : a);
  const diff = most.predicted - most.time;
  host.append(h("p", {class: "cap"}, `Each dot is a kind of task, its area its share of the step; dots on the diagonal are predicted exactly, the shaded band is ±7${NB}%. ` +
    `${most.kind} adds most to the error: ${diff < 0 ? MINUS : "+"}${seconds(Math.abs(diff), 2)} per step.`));
  scatter(host, rows.filter(r => r.time / total > 2e-5).map(r => ({
    x: r.predicted, y: r.time, r: clamp(Math.sqrt(r.time / total) * 26, 3.5, 17), color: r.color, name: r.kind,
    rows: [["measured", seconds(r.time)], ["predicted", seconds(r.predicted)], ["error", signed(r.predicted / r.time - 1)]]})),
    {band: .07, yLabel: "measured, per step", xLabel: "predicted, per step", label: "Predicted against measured time by kind of task"});
  return true;
}
