#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: serial
# ctest: slow, without sanitizers
# ctest: timeout=600
"""Opens the report's demonstration pages in headless Chromium, wide and narrow, light and dark: no
error on the console, no attribute that is not a number, nothing wider than the window, no text over
text, every chart shows something and answers the pointer, every control works. Before that Node reads
every script of the page, where it is installed. Without Chromium the exit code is 77, which ctest
shows as Skipped, unless Node finds a fault.

  report_browser_test.py [PAGE.html ...]   checks these pages instead
"""
import glob
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
LONG = os.environ.get("HOCKET_LONG", "0") not in ("", "0")
SCRIPTS = [os.path.join(os.path.dirname(__file__), "../../src", folder, "page", "*.js") for folder in ("diagnose", "rl")]
PROBE = r"""
<script>addEventListener("load", () => {
  // Charts are drawn asynchronously: begin when their number has been constant for a while.
  let before = -1, still = 0;
  const timer = setInterval(() => {
    const charts = document.querySelectorAll(".chart > svg, .chart > canvas").length;
    still = charts === before ? still + 1 : 0;
    before = charts;
    if (still === 4) clearInterval(timer), probe();
  }, 300);
});
function probe() {
  const out = {errors: window.__errors, overlaps: [], outside: [], silent: [], bad: [], charts: 0};
  const add = (list, text) => { if (out[list].length < 12 && !out[list].includes(text)) out[list].push(text); };
  const check = when => {
    out.width = Math.max(out.width || 0, document.documentElement.scrollWidth - innerWidth);
    for (const svg of document.querySelectorAll(".chart svg")) {
      const box = svg.getBoundingClientRect();
      const texts = [...svg.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
      texts.forEach(([a, p], i) => {
        if (p.left < box.left - 1 || p.right > box.right + 1 || p.top < box.top - 1 || p.bottom > box.bottom + 1) add("outside", when + ": " + a);
        texts.slice(0, i).forEach(([b, q]) => {
          const w = Math.min(p.right, q.right) - Math.max(p.left, q.left), h = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
          if (w > 1 && h > 3) add("overlaps", `${when}: ${a} / ${b}`);
        });
      });
    }
    for (const stack of document.querySelectorAll(".stack")) {
      const filled = [...stack.children].reduce((a, e) => a + e.getBoundingClientRect().width, 0);
      if (filled < .9 * stack.clientWidth) add("outside", `${when}: a stacked bar fills ${filled} of ${stack.clientWidth}`);
    }
    const blocks = [...document.querySelectorAll(".tile, h2, h3, .legend li, th, dd, nav a, button, .seg label")].filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && getComputedStyle(e).display !== "inline");
    for (const e of blocks) add("outside", `${when}: ${e.tagName} ${e.textContent.slice(0, 40)}`);
    const text = [...document.querySelectorAll("#main p, #main li, #main td, #main th, .tile, dd, h1, h2, h3, svg text, figcaption")].map(e => e.textContent).join("\n");
    for (const e of document.querySelectorAll("#main *")) for (const a of e.attributes) {
      if (/\b(undefined|null|Infinity)\b|NaN/.test(a.value)) add("bad", `${when}: ${e.tagName} ${a.name}="${a.value.slice(0, 40)}"`);
    }
    for (const svg of document.querySelectorAll(".chart > svg")) {
      if (!svg.querySelector("path, circle")) add("bad", `${when}: nothing is drawn in ${svg.getAttribute("aria-label")}`);
    }
    for (const m of text.matchAll(/.{0,20}\b(?!100\u202f)[1-9]\d\d+\u202f% of the .{0,20}/g)) add("bad", `${when}: ${m[0]}`);
    for (const m of text.matchAll(/.{0,20}\b(undefined|NaN|null|Infinity|\[object)\b.{0,20}/g)) add("bad", when + ": " + m[0]);
  };
  check("first");
  for (const chart of document.querySelectorAll(".chart > svg, .chart > canvas")) {
    ++out.charts;
    const r = chart.getBoundingClientRect(), tip = document.getElementById("tip");
    let answered = false;
    for (let i = 1; i < 40 && !answered; ++i) for (const f of [.15, .4, .6, .75, .9, .98]) {
      const target = chart.tagName === "CANVAS" || !chart.querySelector("circle:not([visibility])") ? chart : null;
      const at = {clientX: r.left + r.width * (.12 + .86 * i / 40), clientY: r.top + r.height * f, bubbles: true};
      (target || chart).dispatchEvent(new PointerEvent("pointermove", at));
      for (const c of chart.querySelectorAll("circle")) c.dispatchEvent(new PointerEvent("pointermove", {...at, bubbles: false}));
      answered = answered || tip.style.visibility === "visible" && tip.textContent.length > 3;
    }
    if (/undefined|NaN|null|object/.test(tip.textContent)) add("bad", "tip: " + tip.textContent);
    if (!answered) add("silent", (chart.getAttribute("aria-label") || chart.tagName).slice(0, 80));
    chart.dispatchEvent(new PointerEvent("pointerleave", {bubbles: true}));
    for (const key of ["ArrowRight", "ArrowLeft", "+", "-", "0"]) chart.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
    chart.dispatchEvent(new WheelEvent("wheel", {deltaY: -50, ctrlKey: true, clientX: r.left + 200, cancelable: true}));
  }
  for (const label of document.querySelectorAll(".seg label")) { label.click(); check(label.textContent); }
  for (const button of document.querySelectorAll(".tools button")) button.click();
  for (const slider of document.querySelectorAll("input[type=range]")) { slider.value = 0; slider.dispatchEvent(new Event("input")); }
  for (const d of document.querySelectorAll("details")) d.open = true;
  check("after");
  for (let i = 0; i < 3; ++i) document.getElementById("theme").click();
  dispatchEvent(new Event("beforeprint"));
  dispatchEvent(new Event("afterprint"));
  const experts = document.querySelector("#experts figcaption");
  out.layer = experts && +(experts.textContent.match(/\(layer (\d+), expert/) || [])[1];
  out.learning = document.querySelectorAll("#learning .chart > svg").length;
  out.painted = document.querySelectorAll("#sample pre .k").length;
  out.missing = [...document.querySelectorAll("section")].filter(s => s.children.length === 2 && s.lastChild.className === "missing").length;
  out.sections = document.querySelectorAll("section").length;
  const pre = document.createElement("pre");
  pre.id = "probe";
  pre.textContent = JSON.stringify(out);
  document.body.append(pre);
}</script>"""
CATCH = "<script>window.__errors = []; addEventListener('error', e => __errors.push(String(e.message)));</script>"


def chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return name
    return None


def script_faults():
    """Returns the syntax errors of the page's scripts found by Node."""
    node = shutil.which("node")
    if node is None:
        print("skipped: no Node here, the syntax of the scripts is left to the browser (apt-get install nodejs)")
        return []
    scripts = sorted(script for pattern in SCRIPTS for script in glob.glob(pattern))
    assert len(scripts) >= 9, f"{SCRIPTS} holds {scripts}"
    faults = []
    for script in scripts:
        run = subprocess.run([node, "--check", script], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            faults.append(run.stderr.strip())
    print(f"{len(scripts)} scripts read by Node: {chr(10).join(faults) if faults else 'fine'}")
    return faults


def probe(browser, page, width, theme, folder):
    with open(page, encoding="utf-8") as f:
        text = f.read()
    copy = os.path.join(folder, "probe.html")
    with open(copy, "w", encoding="utf-8") as f:
        f.write(text.replace("<head>", "<head>" + CATCH, 1).replace("</body>", PROBE + "</body>"))
    run = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         f"--user-data-dir={folder}/profile", f"--window-size={width},1000", "--hide-scrollbars",
         "--virtual-time-budget=8000", "--enable-logging=stderr", "--dump-dom",
         f"file://{copy}?theme={theme}"],
        capture_output=True, text=True, errors="replace", timeout=240, check=False)
    console = sorted({l.split("] ", 1)[-1] for l in run.stderr.splitlines() if ":CONSOLE" in l})
    found = re.search(r'<pre id="probe">(.*?)</pre>', run.stdout, re.S)
    if not found:
        return [f"the page's script did not finish: {run.stderr[-600:]}"], {}
    out = json.loads(html.unescape(found.group(1)))
    faults = [f"console: {c}" for c in console] + [f"error: {e}" for e in sorted(set(out["errors"]))]
    for key in ("overlaps", "outside", "silent", "bad"):
        faults += [f"{key}: {x}" for x in out[key]]
    if out["width"] > 0:
        faults.append(f"page is {out['width']} px wider than the window")
    return faults, out


def look(browser, page, width, theme, folder):
    """Returns the faults of a page and the findings of the probe."""
    name = os.path.basename(page)
    faults, out = probe(browser, page, width, theme, folder)
    if name == "empty.html" and out.get("missing", 0) != out.get("sections"):
        faults.append(f"{out.get('missing')} of {out.get('sections')} sections say what is missing")
    if name in ("one_rank.html", "four_ranks.html") and (
            out.get("missing", 1) != 0 or out.get("charts", 0) < 11):
        faults.append(f"sections missing: {out.get('missing')}, charts: {out.get('charts')}")
    # The MoE layers are 0, 1, 2, ... in the model of one rank and 1, 3, 5, ... in that of four.
    if name == "four_ranks.html" and (out.get("layer") or 0) % 2 != 1:
        faults.append(f"the busiest expert is in layer {out.get('layer')}")
    # The sample of one rank is C++, that of four is not.
    if name in ("one_rank.html", "four_ranks.html") and (out.get("painted", 0) > 0) != (name == "one_rank.html"):
        faults.append(f"{out.get('painted')} words of the sample are coloured as C++")
    if name.startswith("short_") and (out.get("learning") != 1 or out.get("charts", 0) < 7):
        faults.append(f"a short run draws {out.get('learning')} curves of learning, {out.get('charts')} charts")
    if name == "rl.html" and out.get("charts", 0) != 13:
        faults.append(f"{out.get('charts')} charts of a training by rewards")
    if name in ("hostile.html", "rl_hostile.html"):
        # Artificial names of 70 characters fit nowhere; they must only do no harm.
        faults = [f for f in faults if not f.startswith(("overlaps", "outside", "page is"))]
    return faults, out


def main():
    failed = bool(script_faults())
    browser = chromium()
    if browser is None:
        print("skipped: no Chromium here, no page was opened (apt-get install chromium)")
        return 1 if failed else SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        pages = sys.argv[1:]
        if not pages:
            tests = os.path.join(os.environ["HOCKET_BINARY_DIR"], "hocket_tests")
            subprocess.run([tests, "--gtest_filter=Report.*:RlReport.*"], check=True, capture_output=True,
                           env={**os.environ, "HOCKET_REPORT_DEMO": folder + "/pages"})
            # A report of a step that is only predicted.
            subprocess.run([os.path.join(os.environ["HOCKET_BINARY_DIR"], "hocket"), "simulate",
                            "configs/models/dense-26m", "--set", "plan.pp=2", "--set", "plan.dp=2", "--price", "2",
                            "--html", folder + "/pages/simulated.html"], check=True, capture_output=True)
            pages = sorted(f"{folder}/pages/{p}" for p in os.listdir(folder + "/pages"))
            assert len(pages) >= 15, pages
        for number, page in enumerate(pages):
            name = os.path.basename(page)
            # Pages alternate between the two; HOCKET_LONG=1 opens each in both.
            views = ((1280, "light"), (480, "dark"))
            for width, theme in views if LONG or len(sys.argv) > 1 else views[number % 2 :][:1]:
                # A busy machine can leave a chart undrawn when the probe looks; a real fault
                # persists.
                for _ in range(4):
                    faults, out = look(browser, page, width, theme, folder)
                    if not faults:
                        break
                print(f"{name} at {width} px, {theme}: {'; '.join(faults) if faults else 'fine'}"
                      f" ({out.get('charts', 0)} charts)")
                failed = failed or bool(faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
