// SPDX-License-Identifier: Apache-2.0
// Sections of a page and links to them, figures, the choice of the theme.

const main = document.getElementById("main"), links = document.getElementById("links");
const has = a => a && a.some(known);

function section(id, title, link, build) {
  const box = h("section", {id, "aria-labelledby": id + "-h"}, h("h2", {id: id + "-h"}, title));
  main.append(box);
  const missing = build(box);
  if (typeof missing === "string" && D.simulated) { box.remove(); return; }  // only runs have it
  if (typeof missing === "string") { box.append(h("p", {class: "missing"}, missing)); return; }
  links.append(h("a", {href: "#" + id}, link));
}
// A figure: heading, one sentence, then the drawing of draw(host).
function figure(host, title, text, draw) {
  const caption = h("figcaption", {}, text || "");
  const body = h("div", {});
  host.append(h("figure", {}, title ? h("h3", {}, title) : null, caption, body));
  draw(body, caption);
}

// Lets the button change the theme, and marks the link of the section in view. Call it last.
function finishPage() {
  const themes = {auto: "Auto", light: "Light", dark: "Dark"};
  const toggle = document.getElementById("theme");
  const label = () => { toggle.textContent = themes[chosen] || "Auto"; toggle.setAttribute("aria-label", `Colours: ${themes[chosen]}. Change`); };
  toggle.addEventListener("click", () => {
    chosen = {auto: "light", light: "dark", dark: "auto"}[chosen] || "auto";
    try { localStorage.setItem("hocket-theme", chosen); } catch (e) { /* file without storage */ }
    label();
    applyTheme();
  });
  label();
  const spy = new IntersectionObserver(entries => {
    for (const e of entries) if (e.isIntersecting) for (const a of links.children) a.classList.toggle("here", a.hash === "#" + e.target.id);
  }, {rootMargin: "-15% 0px -75% 0px"});
  document.querySelectorAll("section").forEach(s => spy.observe(s));
}
