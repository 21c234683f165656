# SPDX-License-Identifier: Apache-2.0
"""Page and summary of ./quickstart chat: one HTML file without other resources, in the style of a run's report."""
import html
import json
import math
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STYLE = "src/diagnose/page/style.css"
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 260, 46, 40  # px of a chart, and of its axes' labels
LINE = 112  # characters
OWN_STYLE = """
.chats td, .chats th { text-align: left; white-space: pre-wrap; vertical-align: top; overflow-wrap: anywhere; }
.chats { table-layout: fixed; }
.chats th:first-child { width: 24%; } .chats .q { font-weight: 600; }
.yes::before { content: "\\2713\\00a0"; color: var(--good); font-weight: 700; }
.nope::before { content: "\\2717\\00a0"; color: var(--bad); font-weight: 700; }
.chart svg { height: auto; max-width: 760px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; max-height: none; }
@media (max-width: 560px) { .chats th:first-child { width: 30%; } .tiles { grid-template-columns: 1fr 1fr; } }
"""
SCRIPT = """
const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
document.querySelector("#theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  root.dataset.theme = dark ? "light" : "dark";
});
"""


def one_line(text):
    """Returns a text for a line of the terminal; dots stand for the rest."""
    text = " ".join(text.split())
    return text if len(text) <= LINE else text[:LINE].rsplit(" ", 1)[0] + " .."


def text_of(value):
    return html.escape(str(value))


def style():
    """Returns the style of a run's report; dark colours also follow the system without a script."""
    with open(os.path.join(ROOT, STYLE), encoding="utf-8") as f:
        css = f.read()
    dark = re.search(r"^:root\[data-theme=dark\] (\{.*?^\})", css, re.S | re.M)
    if not dark:
        raise ValueError(f"{STYLE} has no block :root[data-theme=dark]")
    follow = f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {dark.group(1)} }}"
    # Behind the light colours, before everything that uses them.
    return css.replace(dark.group(0), follow + "\n" + dark.group(0)) + OWN_STYLE


def ticks(low, high, most=5):
    """Returns at most some `most` round numbers within [low, high]."""
    least = max(high - low, 1e-12) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def chart(series, x_name, y_name, low=None, high=None):
    """Returns an SVG of curves: series are (name, colour variable, [[x, y], ...], dots)."""
    points = [p for _, _, curve, _ in series for p in curve]
    if not points:
        return '<p class="missing">No values were recorded.</p>'
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    x0, x1 = min(0, *xs) if len(xs) > 1 else 0, max(*xs, 1)
    y0 = min(ys) if low is None else low
    y1 = max(ys) if high is None else high
    y1 = y1 if y1 > y0 else y0 + 1
    if low is None and y0 > 0 and y0 < (y1 - y0):
        y0 = 0

    def at(x, y):
        return (LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - 12), 10 + (y1 - y) / (y1 - y0) * (HEIGHT - BOTTOM - 10))
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text_of(y_name)} by {text_of(x_name)}">']
    for y in ticks(y0, y1):
        _, py = at(x0, y)
        parts.append(f'<line class="gridline" x1="{LEFT}" x2="{WIDTH - 12}" y1="{py:.1f}" y2="{py:.1f}"/>'
                     f'<text x="{LEFT - 8}" y="{py + 4:.1f}" text-anchor="end">{y:.6g}</text>')
    for x in ticks(x0, x1, 8):
        px, _ = at(x, y0)
        parts.append(f'<text x="{px:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:.6g}</text>')
    parts.append(f'<text x="{WIDTH - 12}" y="{HEIGHT - 4}" text-anchor="end">{text_of(x_name)}</text>')
    for name, color, curve, dots in series:
        placed = [at(x, y) for x, y in curve]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" style="stroke:var({color})" stroke-width="1.8"/>')
        if dots:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" style="fill:var({color})"><title>{text_of(name)}: '
                      f'{value[1]:.4g} at {value[0]:g}</title></circle>' for (x, y), value in zip(placed, curve)]
    legend = "".join(f'<li><span class="sw" style="background:var({color})"></span>{text_of(name)}</li>'
                     for name, color, _, _ in series)
    return f'<ul class="legend">{legend}</ul><div class="chart">{"".join(parts)}</svg></div>'


def section(title, caption, body):
    return f"<section><h2>{text_of(title)}</h2><p class=cap>{caption}</p>{body}</section>"


def missing(left_out, name):
    return f'<p class="missing">Not here: {text_of(left_out.get(name, "this step has not run"))}.</p>'


def table(head, rows, classes="data"):
    cells = "".join(f"<th>{text_of(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(row) + "</tr>" for row in rows)
    return (f'<div class="tablewrap"><table class="{classes}"><thead><tr>{cells}</tr></thead>'
            f"<tbody>{lines}</tbody></table></div>")


def chats(before, after):
    rows = [[f"<td class=q>{text_of(b['prompt'])}</td>", f"<td>{text_of(b['text'])}</td>",
             f"<td>{text_of(a['text'])}</td>"] for b, a in zip(before["chats"], after["chats"])]
    return table(("question", "before", "after"), rows, "data chats")


def held_out(before, after):
    def cell(row):
        return f"<td class={'yes' if row['right'] else 'nope'}>{text_of(row['text'])}</td>"
    rows = [(f"<td class=q>{text_of(b['question'])}</td>", cell(b), cell(a))
            for b, a in zip(before["held_out"], after["held_out"])]
    count = f"<p class=cap>Right: {before['right']} of {len(rows)} before, {after['right']} after.</p>"
    return (f"{count}<details><summary>All questions and answers</summary>"
            + table(("question", "before", "after"), rows, "data chats") + "</details>")


def summary(results):
    """Returns the lines that the terminal shows at the end."""
    before, tune, after, serve = (results[name] for name in ("before", "tune", "after", "serve"))
    lines = []
    if before and after:
        count = len(after["held_out"])
        for b, a in list(zip(before["chats"], after["chats"]))[:2]:
            lines += [f"asked    {b['prompt']}", f"before   {one_line(b['text'])}", f"after    {one_line(a['text'])}"]
        lines.append(f"answers  {before['right']} of {count} held-out questions right before, {after['right']} after")
    if before and tune:
        steps = tune["train"][-1][0]
        lines.append(f"loss     {before['loss']:.4f} held-out before, {tune['loss']:.4f} after {steps} steps")
    if serve:
        lines.append(f"served   {one_line(serve['text'])}")
    if results["rl"]:
        right = results["rl"]["right"]
        lines.append(f"reverse  {right[0][1]:.3f} of held-out problems solved before, {right[-1][1]:.3f} after "
                     f"{right[-1][0]} updates")
    return lines


def tiles(results):
    before, tune, after, serve = (results[name] for name in ("before", "tune", "after", "serve"))
    shown = []
    if before and after:
        count = len(after["held_out"])
        shown.append(("held-out questions right", f"{before['right']} → {after['right']} <small>of {count}</small>",
                      "before and after fine-tuning, greedy"))
    if before and tune:
        shown.append(("held-out loss", f"{before['loss']:.3f} → {tune['loss']:.3f}", "nats per trained token"))
    if tune and tune["step_s"]:
        middle = sorted(tune["step_s"])[len(tune["step_s"]) // 2]
        steps = tune["train"][-1][0]
        shown.append(("fine-tuning", f"{steps} <small>steps of {middle:.2f} s</small>", "LoRA, median step"))
    if serve:
        shown.append(("served answer", f"{serve['answer_s']:.2f} <small>s</small>",
                      f"the server was up in {serve['start_s']:.1f} s"))
    if results["rl"]:
        right = results["rl"]["right"]
        shown.append(("digits reversed", f"{right[0][1]:.2f} → {right[-1][1]:.2f}",
                      "of held-out problems, by reinforcement learning"))
    cells = "".join(f"<div class=tile><div class=k>{k}</div><div class=v>{v}</div><div class=n>{n}</div></div>"
                    for k, v, n in shown)
    return f'<div class="tiles" style="--n:{max(1, len(shown))}">{cells}</div>' if shown else ""


def times(titles, steps):
    done = {name: entry for name, entry in steps.items() if entry.get("done")}
    longest = max((entry["seconds"] for entry in done.values()), default=1) or 1
    rows = []
    for name, title in titles.items():
        if name in done:
            width = 100 * done[name]["seconds"] / longest
            rows.append([f"<td>{text_of(name)}</td><td class=l>{text_of(title)}</td>",
                         f"<td>{done[name]['seconds']:.1f} s</td><td class=barcell><span class=bar>",
                         f'<i style="width:{width:.1f}%;background:var(--accent)"></i></span></td>'])
    total = sum(entry["seconds"] for entry in done.values())
    rows.append([f"<td>in all</td><td></td><td>{total:.1f} s</td><td></td>"])
    commands = "\n".join(command for name in titles for command in steps.get(name, {}).get("commands", []))
    return (table(("step", "", "time", ""), rows)
            + f"<details><summary>All commands</summary><pre>{text_of(commands)}</pre></details>")


def page(results, titles, steps, left_out, note):
    """Returns the page. `results`: what each step recorded, or None; `steps`: their times and commands."""
    model, before, tune, after, serve = (results[name] for name in ("model", "before", "tune", "after", "serve"))
    parts = []
    both = before and after
    no_answers = missing(left_out, "after" if before else "before")
    parts.append(section("The same questions, before and after", "Greedy answers of the model as it came, and with the "
                         "LoRA. No question is in the training data, which has others about the same things.",
                         chats(before, after) if both else no_answers))
    body = missing(left_out, "tune")
    if tune:
        evaluated = ([[0, before["loss"]]] if before else []) + tune["eval"]
        body = chart([("training", "--accent", tune["train"], False), ("held-out", "--second", evaluated, True)],
                     "step", "loss, nats per token")
    caption = ("Loss of the trained tokens, the answers. The held-out one at step 0 is of the model as it came; the "
               "first and the last are of the whole held-out set.")
    parts.append(section("Fine-tuning", caption, body))
    caption = ("An answer is right if it names the page that the data names. To a question of general knowledge it "
               "must have the data's last word, and name no page.")
    parts.append(section("Held-out questions", caption, held_out(before, after) if both else no_answers))
    body = missing(left_out, "serve")
    if serve:
        curl = [command for command in steps["serve"]["commands"] if command.startswith("curl")]
        body = f"<pre>$ {text_of(curl[-1])}\n{text_of(json.dumps(serve['reply'], ensure_ascii=False, indent=1))}</pre>"
    parts.append(section("Served", "The tuned model behind OpenAI's API, asked with curl, then stopped by SIGTERM.",
                         body))
    parts.append(rl_section(results, left_out))
    parts.append(section("Time of each part", "Attempts that were interrupted count.", times(titles, steps)))
    title = "A model's whole life in one command"
    sub = " · ".join(part for part in (f"{model['name']} ({model['note']})" if model else "", note) if part)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style()}</style></head><body>
<nav><div class=wrap><span class=brand>Hocket</span><span class=links></span>
<button id=theme>light / dark</button></div></nav>
<div class=wrap><header><h1>{title}</h1><p class=sub>{text_of(sub)}</p>{tiles(results)}</header>
{"".join(parts)}<p class=sub style="padding:40px 0">Written by ./quickstart chat.</p></div>
<script>{SCRIPT}</script></body></html>
"""


def rl_section(results, left_out):
    rl, warmup = results["rl"], results["warmup"]
    caption = ("A model of 1.3 M parameters turns digits around. The warm-up teaches it only the form of an answer, "
               "with random digits; the rewards of its own samples teach it the task.")
    if not rl or not warmup:
        return section("Reinforcement learning", caption, missing(left_out, "rl" if warmup else "warmup"))
    curves = chart([("mean reward of the samples", "--accent", rl["rewards"], False),
                    ("mean reward of held-out answers, greedy", "--good", rl["held_out_rewards"], True),
                    ("share of held-out answers that are right", "--second", rl["right"], True)],
                   "update", "reward, share", 0, max(1, *(y for _, y in rl["rewards"] + rl["held_out_rewards"])))
    warm = chart([("training", "--accent", warmup["train"], False)], "step", "loss, nats per token")
    rows = []
    for sample in rl["samples"]:
        cells = [f"<td class={'yes' if text == sample['expected'] else 'nope'}>{text_of(text)}</td>"
                 for text in sample["texts"]]
        rows.append((f"<td class=q>{text_of(sample['prompt'])}</td>", *cells))
    samples = table(("problem", "after the warm-up", "after reinforcement learning"), rows, "data chats")
    difference = f"Log-probabilities of sampling and of training differed by at most {rl['difference']:g}."
    return section("Reinforcement learning", caption, f"{curves}<p class=cap>{difference}</p>"
                   f"<h3>Held-out problems</h3>{samples}"
                   f"<details><summary>Loss of the warm-up</summary>{warm}</details>")
