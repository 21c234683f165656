// SPDX-License-Identifier: Apache-2.0
// Curves of a training by rewards, and links to the sections that stand in the page already.

const U = D.updates, V = D.evaluations;
AXES.step = {...AXES.step, label: "update", tip: v => "update " + whole(v)};
const TONES = ["--accent", "--second", "--good", "--code-key", "--code-pre", "--bad", "--muted"];
const xOfUpdates = {step: U.step, time: U.time}, xOfEvaluations = {step: V.step, time: V.time};

// A series of updates; null if none was recorded.
function curve(name, title, tone, more = {}) {
  const y = U.columns[name];
  return has(y) ? {name: title || name, x: xOfUpdates, y, color: `var(${tone || TONES[0]})`, width: 1.5, ...more} : null;
}
// Series of evaluations whose name matches, in other colours than the first `used`.
function evaluated(pattern, used) {
  return Object.entries(V.columns).filter(([name, y]) => pattern.test(name) && has(y)).map(([name, y], i) =>
    ({name, x: xOfEvaluations, y, color: `var(${TONES[(used + i) % TONES.length]})`, width: 2, dots: 3, reach: 60}));
}
const lines = (...series) => series.flat().filter(s => s);
const keys = series => legend(series.filter(s => !s.unlisted).map(s => [s.name, stroke(s.color, {width: s.width, dash: s.dash, dot: Boolean(s.dots)})]));
const ends = y => { const a = y.filter(known); return [a[0], last(a)]; };
const fromTo = (y, text) => { const [a, b] = ends(y); return `${text} ${trim(digits(a, 3))} at first, ${trim(digits(b, 3))} at last.`; };
const largest = y => Math.max(...y.filter(known).map(Math.abs));

function panel(host, title, text, series, opt = {}) {
  if (!series.length) return;
  figure(host, title, text, body => {
    if (series.length > 1) body.append(keys(series));
    lineChart(body, series, {height: 220, label: title + " over updates", yLabel: title.toLowerCase(), ...opt});
  });
}

function rewardChart(box) {
  const reward = curve("reward", "reward, each update", "--accent", {width: 1, opacity: .35, hide: true});
  const series = [];
  if (reward) {
    const mean = smooth(reward.y, clamp(U.step.length / 40, 2, 30)), spread = U.columns["rl/reward_std_in_group"];
    series.push(reward, {...reward, name: "reward, smoothed", y: mean, width: 2, opacity: 1, hide: false});
    if (has(spread)) {
      const wide = smooth(spread, clamp(U.step.length / 40, 2, 30)), at = sign => mean.map((m, i) => known(m) && known(wide[i]) ? m + sign * wide[i] : null);
      series.push({...reward, name: "± deviation in a group", y: at(1), dash: "2 4", opacity: .8, hide: false},
        {...reward, name: "less the deviation", y: at(-1), dash: "2 4", opacity: .8, hide: false, unlisted: true});
    }
  }
  series.push(...evaluated(/^eval\/(.*\/)?reward$/, 1));
  if (!series.length) return false;
  figure(box, null, "Mean reward of the samples of a step, and of held-out ones. Dotted: the deviation inside a group, which is what there is to learn from.", body => {
    let chart = null;
    body.append(h("div", {class: "tools", style: {marginBottom: "2px"}}, keys(series),
      has(U.time) ? h("span", {class: "push"}, seg("Horizontal axis", [["step", "Updates"], ["time", "Time"]], "step", k => chart.over(k))) : null));
    chart = lineChart(body, series, {height: 340, label: "Reward over updates", yLabel: "reward"});
  });
  return true;
}

function rewardParts() {
  const names = Object.keys(U.columns).filter(n => /^rewards\/.*\/mean$/.test(n)).slice(0, TONES.length);
  return names.length > 1 ? lines(names.map((n, i) => curve(n, n.slice(8, -5), TONES[i]))) : [];
}

function allCharts(box) {
  if (!rewardChart(box)) { box.append(h("p", {class: "missing"}, "No updates were recorded.")); return; }
  const two = h("div", {class: "two"});
  box.append(two);
  const C = U.columns;
  panel(two, "Rewards by name", "Means of each reward, before weights.", rewardParts());
  panel(two, "Held-out problems solved", "Share of held-out prompts with a right answer among k.", evaluated(/pass@\d+$/, 0), {zero: true});
  if (has(C.entropy)) panel(two, "Entropy", fromTo(C.entropy, "Nats per token:"), lines(curve("entropy")), {zero: true});
  panel(two, "Length", "Tokens of a sample; dashed: of those that ended by themselves.", lines(curve("completions/mean_length", "all"), curve("completions/mean_terminated_length", "ended", "--second", {dash: "6 4"})), {zero: true});
  panel(two, "Shares of samples and groups", "Samples that were cut off, groups whose rewards are equal, and samples with a failed reward.", lines(
    curve("completions/clipped_ratio", "cut off"), curve("frac_reward_zero_std", "equal groups", "--second"), curve("rewards/failed", "failed reward", "--bad")), {zero: true});
  panel(two, "Clipped tokens", "Share of tokens whose ratio is clipped, below and above.", lines(curve("clip_ratio/low_mean", "below"), curve("clip_ratio/high_mean", "above", "--second")), {zero: true});
  panel(two, "Divergence", "From the reference, and from the policy that sampled; estimator k3.", lines(curve("kl", "from the reference"), curve("approx_kl", "from the old policy", "--second")), {zero: true});
  const apart = C["sampling/sampling_logp_difference/max"];
  if (has(apart)) {
    panel(two, "Sampling against training", largest(apart) === 0 ? "The log-probabilities of sampling and of training are equal to the bit in every step." : `Log-probabilities differ by up to ${small(largest(apart))}.`,
      lines(curve("sampling/sampling_logp_difference/max", "largest difference")), {zero: true, yText: small});
  }
  panel(two, "Corrections", "Mean and largest ratio of the old policy to the one that sampled.", lines(curve("correction/ratio_mean", "mean"), curve("correction/ratio_max", "largest", "--second")));
  panel(two, "Critic", "Share of the returns' variance that its values explain; 1 is all of it.", lines(curve("critic/vf_explained_var", "explained variance")));
  if (has(C["train/loss"])) panel(two, "Loss", "Of an update. It has no meaning as a level: advantages change with the samples.", lines(curve("train/loss", "loss")));
  if (has(C["train/grad_norm"])) panel(two, "Gradient norm", fromTo(C["train/grad_norm"], "Before clipping:"), lines(curve("train/grad_norm", "gradient norm")), {zero: true});
  if (has(C["train/lr"])) panel(two, "Learning rate", "", lines(curve("train/lr", "learning rate")), {zero: true, yText: small});
  panel(two, "Time", "Seconds of each phase of a step, and of an update.", lines(curve("timing_s/gen", "sampling"), curve("timing_s/reward", "waiting for rewards", "--second"),
    curve("timing_s/ref", "reference", "--good"), curve("timing_s/old_log_prob", "old log-probabilities", "--code-key"), curve("perf/step_s", "update", "--code-pre")), {zero: true, yText: v => tidy(seconds(v, 3))});
  if (U.step.length < D.rows) box.append(h("p", {class: "missing"}, `Curves show means over ${Math.ceil(D.rows / U.step.length)} updates each; metrics.jsonl has them all.`));
}

for (const part of main.querySelectorAll("section[data-link]")) {
  if (!/^held-out-[1-9]/.test(part.id)) links.append(h("a", {href: "#" + part.id}, part.dataset.link));
}
allCharts(document.getElementById("curves"));
finishPage();
