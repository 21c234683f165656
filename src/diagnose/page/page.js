// SPDX-License-Identifier: Apache-2.0
// The page itself: head, sections in order, and their text when data is missing.

const N = D.num, T = D.train, E = D.eval;
const settledMedian = a => median(a.filter((_, i) => T.step[i] >= N.settled)) ?? median(a);
const nearest = step => T.step.reduce((b, s, i) => Math.abs(s - step) < Math.abs(T.step[b] - step) ? i : b, 0);

// ---- derived numbers
const valid = E.step.map((s, i) => ({step: s, time: E.time[i], bpb: E.bpb[i], loss: E.loss[i]})).filter(e => known(e.bpb));
const finalBpb = N.final_bpb ?? (valid.length ? last(valid).bpb : null);
// Nats per token to bits per byte, from the evaluations, which have both.
const perByte = median(valid.filter(e => e.loss > 0).map(e => e.bpb / e.loss));
const lower = D.baselines.filter(b => known(b.bpb));
const beaten = lower.filter(b => known(finalBpb) && finalBpb < b.bpb);
const pace = D.simulated && N.tokens_per_step ? N.tokens_per_step / N.predicted_step_s / N.world : settledMedian(T.tps), pace_all = known(pace) ? pace * N.world : null;
const stepMeasured = N.step_median ?? settledMedian(T.step_s);
const stepPredicted = N.predicted_step_s ?? (T.pred || []).find(known);
const stepError = known(stepMeasured) && known(stepPredicted) ? stepPredicted / stepMeasured - 1 : null;
const flopRate = D.simulated && known(N.flops_per_step) ? N.flops_per_step / stepPredicted / N.world : known(settledMedian(T.tflops)) ? settledMedian(T.tflops) * 1e12 : known(N.flops_per_step) && stepMeasured ? N.flops_per_step / stepMeasured / N.world : null;
const mfu = settledMedian(T.mfu) ?? (known(flopRate) && known(N.peak_flops) ? flopRate / N.peak_flops : null);
const trained = has(T.time) ? Math.max(...T.time.filter(known)) : null;

// First crossing of a baseline by the evaluations, between two of them by linear interpolation.
function crossing(limit) {
  const k = valid.findIndex(e => e.bpb < limit);
  if (k < 0) return null;
  if (k === 0) return {step: valid[0].step, time: valid[0].time};
  const a = valid[k - 1], b = valid[k], f = (a.bpb - limit) / (a.bpb - b.bpb);
  return {step: a.step + f * (b.step - a.step), time: a.time + f * (b.time - a.time)};
}

// ---- head
function lede() {
  const parts = [], bold = t => h("b", {}, t);
  if (known(finalBpb)) {
    const name = b => h("span", {style: {whiteSpace: "nowrap"}}, b.name), list = a => a.flatMap((x, i) => i ? [i + 1 === a.length ? " and " : ", ", x] : [x]);
    parts.push(known(trained) ? `After ${seconds(trained)} of training the model needs ` : "The model needs ", bold(bpb(finalBpb) + " bits per byte"), ` of ${D.data_name}`);
    const under = b => h("span", {}, `${percent(1 - finalBpb / b.bpb)} below `, name(b)), over = b => h("span", {}, `${percent(finalBpb / b.bpb - 1)} above `, name(b));
    const notYet = lower.filter(b => !beaten.includes(b));
    if (beaten.length) parts.push(", ", list(beaten.map(under)));
    if (notYet.length) parts.push(beaten.length ? "; still " : ", ", list(notYet.map(over)));
    parts.push(". ");
  } else if (T.n) {
    const l = T.loss.filter(known);
    if (l.length > 1) parts.push("The training loss went from ", bold(digits(l[0], 3)), " to ", bold(digits(last(l), 3) + " nats per token"), known(trained) ? ` in ${seconds(trained)}. ` : ". ");
    else if (l.length) parts.push("The training loss of the only step is ", bold(digits(l[0], 3) + " nats per token"), ". ");
  }
  if (D.simulated) parts.push("A step takes ", bold(seconds(stepPredicted)), " according to the simulator.", N.provenance ? ` Durations: ${N.provenance}.` : "");
  if (known(stepError)) {
    const before = N.predicted_step_s != null ? " before the first one" : "", off = Math.abs(stepError);
    parts.push("A step takes ", bold(seconds(stepMeasured)), ...(off < 5e-4 ? [`, as predicted${before}.`] : off <= .1 ? [`, predicted${before} within `, bold(percent(off)), "."]
      : [`; ${seconds(stepPredicted)} was predicted${before}, `, bold(`${percent(off)} too ${stepError < 0 ? "low" : "high"}`), "."]));
  }
  return parts;
}
function tiles() {
  const out = [], tile = (k, v, n) => out.push(h("div", {class: "tile"}, h("div", {class: "k"}, k), h("div", {class: "v"}, v), h("div", {class: "n"}, n)));
  const tokens = has(T.tokens) ? Math.max(...T.tokens.filter(known)) : null;
  const unit = text => { const i = text.lastIndexOf(NB); return i < 0 ? [text] : [text.slice(0, i), h("small", {}, NB + text.slice(i + 1))]; };
  if (known(finalBpb)) {
    tile("Held-out bits per byte", bpb(finalBpb), lower.flatMap((b, i) => [i ? h("br") : null,
      h("span", {class: finalBpb < b.bpb ? "ok" : "no"}, finalBpb < b.bpb ? "✓ " : "✗ "), `${b.name} ${bpb(b.bpb)}`]));
  }
  if (known(pace_all)) tile("Throughput", unit(whole(pace_all) + NB + "tokens/s"), [N.world > 1 ? `${whole(pace)} per rank` : null, known(tokens) ? `${count(tokens)} tokens in ${whole(T.n * D.thinned)} step${T.n * D.thinned === 1 ? "" : "s"}` : null].filter(Boolean).join("; "));
  if (known(flopRate)) tile(known(mfu) ? "Model FLOP/s (MFU)" : "Model FLOP/s", unit(rate(flopRate, "FLOP/s")), known(mfu) ? (mfu > 1 && known(N.peak_flops) ? ofPeak(mfu * N.peak_flops) : `${percent(mfu)} of the ${peakName}`) : "per rank");
  if (D.simulated) tile("Step time", unit(seconds(stepPredicted)), D.status ? ["predicted; ", h("span", {class: "no"}, D.status)] : "predicted");
  if (known(N.dollars_per_m_tokens)) tile("Per million tokens", "$" + digits(N.dollars_per_m_tokens, 3), "price of the devices");
  if (known(stepMeasured)) tile("Step time", unit(seconds(stepMeasured)), known(stepPredicted) ? [`predicted ${seconds(stepPredicted)} (`, h("span", {class: Math.abs(stepError) <= .07 ? "ok" : "no"}, signed(stepError)), ")"] : "median");
  const plan = D.memory.reduce((a, b) => !a || b.planned > a.planned ? b : a, null);
  if (plan && plan.planned) tile("Memory per rank", unit(bytes(plan.measured || plan.planned)), plan.measured ? `planned ${bytes(plan.planned)} (${signed(plan.planned / plan.measured - 1)})` : "as planned");
  else if (has(T.peak)) tile("Peak memory", unit(bytes(Math.max(...T.peak.filter(known)) * 2 ** 30)), "measured");
  if (known(N.params)) tile("Parameters", unit(count(N.params)), known(N.active) && N.active !== N.params ? `${count(N.active)} active per token` : "all active");
  return out;
}
document.title = D.title || "Hocket report";
const top_ = h("header", {}, h("h1", {}, D.title || "Report"), h("p", {class: "sub"}, [D.subtitle, D.date, D.status].filter(Boolean).join(" · ")),
  h("p", {class: "lede"}, lede()));
const tileList = tiles();
if (tileList.length) top_.append(h("div", {class: "tiles", style: `--n:${tileList.length}`}, tileList));
if (D.facts.length) {
  top_.append(h("div", {class: "facts"}, D.facts.filter(f => f.rows.length).map(f => h("div", {}, h("h3", {}, f.title), h("dl", {}, f.rows.map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)]))))));
}
main.append(top_);

// ---- learning
section("learning", "Learning", "Learning", box => {
  if (!T.n && !valid.length) return "No metrics were recorded.";
  const bits = known(perByte), inBits = y => bits ? y.map(v => known(v) ? v * perByte : null) : y;
  const train = inBits(T.loss), xTrain = {step: T.step, time: T.time, tokens: T.tokens};
  const window = clamp(T.n / 40, 2, 30);
  const tokensAt = s => T.n && has(T.tokens) ? T.tokens[nearest(s)] : null;
  const xValid = {step: E.step, time: E.time, tokens: E.step.map(tokensAt)};
  const marks = bits ? lower.map(b => [b, crossing(b.bpb)]).filter(m => m[1]) : [];
  const series = [
    {name: "training, each step", x: xTrain, y: train, color: "var(--accent)", width: 1, opacity: .32, hide: true},
    {name: "training, smoothed", x: xTrain, y: smooth(train, window), color: "var(--accent)", width: 2}];
  const validSeries = {name: "validation", x: xValid, y: bits ? E.bpb : E.loss, color: "var(--second)", width: 2, dots: 3, reach: 60};
  if (has(validSeries.y)) series.push(validSeries);
  // Sets with names: bits per byte where the axis has them, else nats per token.
  const setColors = ["var(--good)", "var(--code-key)", "var(--code-pre)", "var(--muted)"];
  const sets = (E.sets || []).map((s, i) => ({name: s.name, x: xValid, y: bits ? s.bpb : s.loss, color: setColors[i % setColors.length], width: 1.6, dots: 2.5, reach: 60})).filter(s => has(s.y));
  series.push(...sets);
  const refs = bits ? lower.map((b, i) => ({y: b.bpb, label: `${b.name} ${bpb(b.bpb)}`, name: b.name, dash: i % 2 ? "2 3" : "7 4"})) : [];
  let text;
  if (bits) {
    const when = marks.map(([b, m]) => `${b.name} after ${known(m.time) ? seconds(m.time) : "step " + whole(m.step)}`);
    text = `Loss in bits per byte, lower is better: validation ends at ${bpb(last(valid).bpb)}` + (when.length ? ` and passes ${when.join(" and ")} (circles)` : "") +
      (refs.length && marks.length < refs.length ? `; ${lower.filter(b => !marks.some(m => m[0] === b)).map(b => b.name).join(" and ")} ${refs.length - marks.length > 1 ? "are" : "is"} not passed` : "") + ".";
  } else text = "Training loss in nats per token, lower is better.";
  figure(box, null, text, host => {
    const over = has(T.time) ? "time" : "step";
    const swap = [["time", "Time"], ["step", "Steps"], ["tokens", "Tokens"]].filter(([k]) => has(xTrain[k]));
    let chart = null;
    host.append(h("div", {class: "tools", style: {marginBottom: "2px"}},
      legend([["training, each step", stroke("var(--accent)", {width: 1.2, opacity: .5})], ["training, smoothed", stroke("var(--accent)")],
        ...(has(validSeries.y) ? [["validation", stroke("var(--second)", {dot: true})]] : []), ...sets.map(s => [s.name, stroke(s.color, {dot: true, width: 1.6})]), ...lower.filter(() => bits).map((b, i) => [b.name, stroke("var(--fg)", {width: 1.3, dash: i % 2 ? "2 3" : "7 4"})])]),
      swap.length > 1 ? h("span", {class: "push"}, seg("Horizontal axis", swap, over, k => chart.over(k))) : null));
    chart = lineChart(host, series, {x: over, height: 360, log: true, refs, yLabel: bits ? "bits per byte (log scale)" : "nats per token (log scale)", yTip: bits ? bpb : v => digits(v, 4), label: text,
      marks: marks.map(([b, m]) => ({x: {...m, tokens: tokensAt(m.step)}, y: b.bpb, label: known(m.time) ? seconds(m.time) : "step " + whole(m.step)}))});
  });
  if (lower.some(b => b.what)) box.append(h("p", {class: "missing"}, lower.filter(b => b.what).map(b => `${b.name}: ${b.what}.`).join(" ")));
});

// ---- sample
section("sample", "Generated text", "Sample", box => {
  if (!D.samples.length) return "No sample was generated.";
  const words = "alignas alignof auto bool break case catch char class concept const consteval constexpr continue decltype default delete do double else enum explicit extern false final float for friend goto if inline int long mutable namespace new noexcept nullptr operator override private protected public requires return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while".split(" ").join("|");
  const lexer = new RegExp(`(//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$))|("(?:\\\\.|[^"\\\\\\n])*"?|'(?:\\\\.|[^'\\\\\\n]){1,4}')|(^[ \\t]*#[ \\t]*\\w+)|\\b(${words})\\b`, "gm");
  const paint = text => {
    const out = [];
    let at = 0;
    for (const m of text.matchAll(lexer)) {
      out.push(text.slice(at, m.index), h("span", {class: m[1] ? "c" : m[2] ? "s" : m[3] ? "p" : "k"}, m[0]));
      at = m.index + m[0].length;
    }
    return [...out, text.slice(at)];
  };
  const early = D.samples.some(s => s.when);
  box.append(h("p", {class: "cap"}, `Text that the ${early ? "" : "trained "}model continues from a prompt (shaded)${early ? ", before and after training" : ""}${D.samples.some(s => s.how) ? `, sampled with ${D.samples[0].how}` : ""}.`));
  for (const s of D.samples) {
    if (early) box.append(h("h3", {}, s.when || "after training"));
    box.append(h("pre", {tabindex: 0}, s.prompt ? h("span", {class: "prompt"}, s.prompt) : null, s.language === "c++" ? paint(s.text) : s.text));
  }
});

// ---- data
section("data", "Data as the model sees them", "Data", box => {
  if (!D.examples.length && !D.lengths.length) return "The data of this run are not in the report.";
  box.append(h("p", {class: "cap"}, "The first sequences of the training; the loss is of the ", h("span", {class: "t"}, "marked"), " tokens alone."));
  for (const e of D.examples) {
    box.append(h("h3", {}, `${e.place}: ${whole(e.tokens)} token${e.tokens === 1 ? "" : "s"}, ${whole(e.trained)} trained`),
      h("pre", {class: "example", tabindex: 0}, e.parts.map(([t, text]) => t ? h("span", {class: "t"}, text) : text)));
  }
  if (!D.lengths.length) return;
  const most = Math.max(...D.lengths.map(([, n]) => n));
  box.append(h("h3", {}, "Lengths"), h("p", {class: "cap"}, D.lengths_text + "."),
    h("div", {class: "tablewrap"}, h("table", {class: "data"},
      h("thead", {}, h("tr", {}, h("th", {}, "tokens, up to"), h("th", {}, "number"), h("th", {class: "barcell"}))),
      h("tbody", {}, D.lengths.map(([limit, n]) => h("tr", {}, h("td", {}, whole(limit)), h("td", {}, whole(n)),
        h("td", {class: "barcell"}, h("span", {class: "bar"}, h("i", {style: {width: `${100 * n / most}%`, background: "var(--accent)"}})))))))));
});

// ---- where the time went
section("time", "Where the time went", "Time", box => {
  if (!D.kinds.length || !D.kinds.some(k => known(k[3]))) return "No step was traced, so the time by kind of task is not known.";
  timeByKind(box);
});
if (D.ranks.length) section("ranks", "Where the time of each rank goes", "Ranks", rankShares);
section("timeline", "One step", "Timeline", box => {
  if (!D.timelines.length) return "No step was traced, so there is no timeline.";
  figure(box, null, "", timeline);
});

// ---- prediction
section("prediction", "Predicted against measured", "Prediction", box => {
  if (D.simulated) return "Nothing was measured.";
  if (!known(stepPredicted)) return "Nothing was predicted for this run.";
  if (!has(T.step_s)) return `Predicted step time: ${seconds(stepPredicted)}; no measured step times were recorded.`;
  const [p10, p90] = [N.step_p10, N.step_p90];
  const two = h("div", {class: "two"});
  box.append(two);
  figure(two, "Step time", `${N.speed_settled ? `From step ${whole(N.settled)} on the` : `The run ended before step ${whole(N.settled)}, so its speed had not settled; of ${whole(N.steps_counted)} step${N.steps_counted === 1 ? "" : "s"} the`} median step takes ${seconds(stepMeasured)}${known(p10) && seconds(p10) !== seconds(p90) ? ` (80${NB}% between ${seconds(p10)} and ${seconds(p90)})` : ""}, and the simulator had predicted ${seconds(stepPredicted)}: ${signed(stepError)}.` +
    (known(N.speed_ratio) ? ` At the speed that the machine had when the tasks were timed (a fixed product then ran ${digits(1 / N.speed_ratio, 3)} times as fast) a step would take ${seconds(stepMeasured * N.speed_ratio)}: ${signed(stepPredicted / stepMeasured / N.speed_ratio - 1)}.` : "") +
    (N.speed_moved > .1 ? ` The machine's speed moved by ${percent(N.speed_moved)} meanwhile.` : ""), host => {
    host.append(legend([["measured", stroke("var(--accent)", {width: 0, dot: true})], ["predicted", stroke("var(--fg)", {dash: "7 4", width: 1.4})], [`±7${NB}% of predicted`, "var(--band)"]]));
    lineChart(host, [{name: "measured", x: {step: T.step, time: T.time}, y: T.step_s, color: "var(--accent)", line: false, dots: 1.7, opacity: .6, text: v => seconds(v)}],
      {height: 300, clip: .985, zero: false, yLabel: "step time", yText: v => tidy(seconds(v, 3)), band: {lo: stepPredicted * .93, hi: stepPredicted * 1.07},
        refs: [{y: stepPredicted, label: "predicted " + seconds(stepPredicted), name: "predicted", dash: "7 4"}], label: "Step time over training steps"});
  });
  const right = h("figure", {}, h("h3", {}, "By kind of task"));
  if (predictionByKind(right)) two.append(right);
  else two.append(h("p", {class: "missing"}, "There is no prediction by kind of task."));
  if (N.provenance) box.append(h("p", {class: "missing"}, "Prediction: " + N.provenance + (/[.!]$/.test(N.provenance) ? "" : ".")));
});

// ---- memory, experts
section("memory", "Memory plan", "Memory", box => {
  if (!D.memory.length || !D.memory[0].blocks.length) return "No memory plan was recorded.";
  figure(box, null, "", memoryPlan);
});
section("experts", "Load of the experts", "Experts", box => {
  if (!D.load) return "No expert load was recorded; a dense model has none.";
  figure(box, null, "", expertLoad);
});

// ---- health
section("health", "Optimizer and throughput", "Optimizer", box => {
  const charts = [  // values, title, sentence, options
    [T.lr, "Learning rate", () => { const a = T.lr.filter(known), top = Math.max(...a); return Math.min(...a) === top ? `Constant at ${small(top)}.` : last(a) === top ? `Rises to ${small(top)}.` : `Rises to ${small(top)} over the warm-up, then falls to ${small(last(a))}.`; }, {yLabel: "learning rate", zero: true, yText: small}, "--accent"],
    [T.grad, "Gradient norm", () => { const a = T.grad.filter(known), m = median(a), b = Math.max(...a); return `Median ${digits(m, 3)}, largest ${digits(b, 3)}${b > 10 * m ? ": spikes are steps worth looking at" : "; no spike above ten times the median"}.`; }, {yLabel: "global L2 norm before clipping", log: true}, "--accent"],
    [T.tps && T.tps.map(v => known(v) ? v * N.world : null), "Throughput", a => { const v = a.filter((x, i) => known(x) && T.step[i] >= N.settled), m = median(v); return m == null ? "" : `Median ${whole(m)} tokens/s, between ${whole(Math.min(...v))} and ${whole(Math.max(...v))} after step ${whole(N.settled)}.`; }, {yLabel: "tokens/s", zero: true, yText: v => tidy(count(v))}, "--accent"],
    [D.load && D.load.steps.length > 2 ? null : T.bal, "Busiest expert", () => `The busiest expert of any layer gets ${digits(last(T.bal.filter(known)), 3)} times the mean at the end; 1 is perfect balance.`, {yLabel: "max / mean load", zero: false}, "--accent"],
    [T.peak && T.peak.map(v => known(v) ? v * 2 ** 30 : null), "Memory", a => { const v = a.filter(known); return Math.max(...v) - Math.min(...v) < .02 * Math.max(...v) ? `Constant at ${bytes(Math.max(...v))}: the memory of the fullest rank.` : `From ${bytes(v[0])} to ${bytes(last(v))}.`; }, {yLabel: "peak memory", zero: true, byteTicks: true, yText: v => v ? tidy(bytes(v, 3)) : "0"}, "--accent"],
  ].filter(c => has(c[0]));
  if (!charts.length) return "No optimizer metrics were recorded.";
  const two = h("div", {class: "two"});
  box.append(two);
  for (const [y, title, text, opt, tone] of charts) {
    figure(two, title, text(y), host => lineChart(host, [{name: title.toLowerCase(), x: {step: T.step, time: T.time}, y, color: `var(${tone})`, width: 1.4}], {height: 210, label: title + " over training steps", ...opt}));
  }
});

// ---- the rest
section("config", "Configuration and files", "Files", box => {
  if (D.next.length) {
    box.append(h("h3", {}, "Next"));
    for (const n of D.next) {
      const copy = h("button", {onclick: () => navigator.clipboard.writeText(n.command).then(() => { copy.textContent = "copied"; setTimeout(() => { copy.textContent = "copy"; }, 1500); }, () => {})}, "copy");
      box.append(h("div", {class: "cmd"}, h("pre", {}, n.command), navigator.clipboard ? copy : null));
      if (n.what) box.append(h("p", {class: "cap"}, n.what));
    }
  }
  if (D.files.length) {
    box.append(h("h3", {}, "Files of this run"), h("div", {class: "tablewrap"}, h("table", {class: "data"}, h("thead", {}, h("tr", {}, h("th", {}, "file"), h("th", {class: "l"}, "what it is"), h("th", {}, "size"))),
      h("tbody", {}, D.files.map(f => h("tr", {}, h("td", {}, h("code", {}, f.name)), h("td", {class: "l", style: {whiteSpace: "normal"}}, f.what), h("td", {}, f.bytes > 0 ? bytes(f.bytes) : "–")))))));
  }
  if (D.config) box.append(h("h3", {}, "Resolved configuration"), h("details", {}, h("summary", {}, `run.yaml, ${D.config.split("\n").length} lines`), h("pre", {tabindex: 0}, D.config)));
  if (D.notes.length) box.append(h("h3", {}, "Notes"), h("ul", {}, D.notes.map(n => h("li", {}, n))));
  if (!D.next.length && !D.files.length && !D.config && !D.notes.length) return "Neither configuration nor files were recorded.";
});

main.append(h("footer", {}, [D.command && ["Made by ", h("code", {}, D.command)], D.version && ` Hocket ${D.version}.`, " This page is one file: it needs no network and sends nothing.",
  D.thinned > 1 ? ` Curves show means over ${D.thinned} steps each; metrics.jsonl has them all.` : ""]));

finishPage();
