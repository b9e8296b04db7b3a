"use strict";
// Texts of the data become text nodes only, never markup.
const SVG = "http://www.w3.org/2000/svg";
const NEAR = 40;

function draw(name, attributes) {
  const shape = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
  return shape;
}

function explain(figure) {
  const names = JSON.parse(figure.dataset.names);
  const points = JSON.parse(figure.dataset.points);
  const picture = figure.querySelector(".picture");
  const svg = figure.querySelector("svg");
  const tip = figure.querySelector(".tip");
  const select = figure.querySelector("select");
  let chosen = -1;
  let current = -1;

  const shown = () => points.filter((point) => chosen < 0 || point[0] === chosen);

  function show(point) {
    svg.querySelectorAll("circle").forEach((circle) => circle.remove());
    tip.hidden = !point;
    current = points.indexOf(point);
    if (!point) return;
    const [name, x, y, text] = point;
    svg.append(draw("circle", { cx: x, cy: y, r: 6 }));
    tip.textContent = names[name] ? names[name] + "\n" + text : text;
    const box = svg.viewBox.baseVal;
    tip.style.left = tip.style.right = tip.style.top = tip.style.bottom = "";
    if (x < box.width / 2) tip.style.left = (100 * (x + 10)) / box.width + "%";
    else tip.style.right = 100 - (100 * (x - 10)) / box.width + "%";
    if (y < box.height / 2) tip.style.top = (100 * (y + 10)) / box.height + "%";
    else tip.style.bottom = 100 - (100 * (y - 10)) / box.height + "%";
  }

  function nearest(event) {
    const frame = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / frame.width;
    const x = (event.clientX - frame.left) * scale;
    const y = (event.clientY - frame.top) * scale;
    let best;
    let least = NEAR;
    for (const point of shown()) {
      const far = Math.hypot(point[1] - x, point[2] - y);
      if (far < least) [least, best] = [far, point];
    }
    return best;
  }

  function step(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") show();
    if (!by) return;
    event.preventDefault();
    const all = shown();
    const at = all.indexOf(points[current]);
    show(all[at < 0 ? 0 : (at + by + all.length) % all.length]);
  }

  function choose() {
    chosen = Number(select.value);
    svg.querySelectorAll("polyline").forEach((line) => line.remove());
    picture.classList.toggle("one", chosen >= 0);
    show();
    if (chosen < 0) return;
    const line = shown().map((point) => point[1] + "," + point[2]).join(" ");
    svg.append(draw("polyline", { points: line }));
  }

  if (names.length < 2) figure.querySelector("label").hidden = true;
  [["all", -1], ...names.map((name, at) => [name, at])].forEach(([name, at]) => select.append(new Option(name, at)));
  select.addEventListener("change", choose);
  svg.addEventListener("pointermove", (event) => show(nearest(event)));
  svg.addEventListener("pointerleave", () => show());
  svg.addEventListener("keydown", step);
}

function filter(section) {
  const input = section.querySelector("input[type=search]");
  if (!input) return;
  const rows = [...section.querySelectorAll("tbody tr")];
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    let found = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      found += !row.hidden;
    }
    section.querySelector(".found").textContent = wanted ? found + " of " + rows.length + " rows" : "";
  });
}

// Paper has what is folded on the screen.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((part) => part.setAttribute("open", ""));
});
addEventListener("afterprint", () => folded.forEach((part) => part.removeAttribute("open")));

document.querySelectorAll("figure").forEach(explain);
document.querySelectorAll("main > section").forEach(filter);
