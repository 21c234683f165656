// SPDX-License-Identifier: Apache-2.0
// Breakdown of every rank's time: a bar each of compute, exposed communication, pipeline bubbles and other
// idle time.

const SHARES = [["compute", hsl(...HUES.products)], ["exposed communication", hsl(...HUES.communication)], ["bubble", "repeating-linear-gradient(45deg, var(--muted) 0 2px, var(--grid) 2px 5px)"], ["idle", "var(--grid)"]];

function rankShares(host) {
  const step = N.predicted_step_s, share = i => D.ranks.map(r => r[i + 1] / step);
  const range = a => { const [lo, hi] = [Math.min(...a), Math.max(...a)]; return percent(lo) === percent(hi) ? percent(lo) : `${percent(lo)} to ${percent(hi)}`; };
  host.append(h("p", {class: "cap"}, `Ranks compute ${range(share(0))} of the step, communicate without overlap ${range(share(1))}, wait for another pipeline stage ${range(share(2))} (bubble), and for others ${range(share(3))} (idle).` +
    (D.ranks_left_out ? ` ${whole(D.ranks_left_out)} more ranks are not shown.` : "")));
  host.append(legend(SHARES.map(([name, tone]) => [name, tone])));
  host.append(h("div", {class: "tablewrap"}, h("table", {class: "data"},
    h("thead", {}, h("tr", {}, h("th", {}, "rank"), h("th", {class: "wide"}, ""), SHARES.map(([name]) => h("th", {}, name)))),
    h("tbody", {}, D.ranks.map(([name, ...times]) => h("tr", {}, h("td", {}, name),
      h("td", {class: "barcell wide"}, h("div", {class: "stack thin", role: "img", "aria-label": `${name}: ${SHARES.map(([s], i) => `${s} ${percent(times[i] / step)}`).join(", ")}`},
        times.map((t, i) => h("i", {style: {background: SHARES[i][1], flex: `${1000 * t / step} 0 0`}})))),
      times.map(t => h("td", {}, `${seconds(t)} (${percent(t / step)})`))))))));
}
