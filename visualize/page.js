"use strict";
const data = JSON.parse(document.getElementById("data").textContent);

// Charts are drawn as they come into sight, so that the page opens at once.
const drawChart = (holder) => {
  const figure = data.charts[holder.dataset.chart];
  Plotly.newPlot(holder, figure.data, figure.layout, { responsive: true, displaylogo: false });
};
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      seen.unobserve(entry.target);
      drawChart(entry.target);
    }
  }
}, { rootMargin: "200px" });
document.querySelectorAll(".chart").forEach((holder) => seen.observe(holder));

// The graph: one picture for each level, moved and zoomed by its view box.
const frame = document.getElementById("graph");
const pictures = Object.fromEntries(
  [...(frame?.querySelectorAll("svg") ?? [])].map((svg) => [svg.dataset.level, svg]));
const whole = {}, view = {};
let level = null;

const apply = () => {
  const v = view[level];
  pictures[level].setAttribute("viewBox", `${v.x} ${v.y} ${v.w} ${v.h}`);
};
const fit = () => {
  const all = whole[level], ratio = frame.clientHeight / Math.max(1, frame.clientWidth);
  // Its full width, from the top; the rest is a scroll away.
  view[level] = { x: all.x, y: all.y, w: all.w, h: Math.max(1, all.w * ratio) };
  apply();
};
const zoom = (factor, px = 0.5, py = 0.5) => {
  const v = view[level];
  view[level] = { x: v.x + px * v.w * (1 - factor), y: v.y + py * v.h * (1 - factor),
                  w: v.w * factor, h: v.h * factor };
  apply();
};
const show = (name) => {
  level = name;
  for (const [key, svg] of Object.entries(pictures)) svg.classList.toggle("shown", key === name);
  for (const button of document.querySelectorAll("[data-show]"))
    button.setAttribute("aria-pressed", button.dataset.show === name);
  view[name] ? apply() : fit();
  find(false);
};

const search = document.getElementById("find"), found = document.getElementById("found");
let hits = [], turn = -1;
const find = (move) => {
  const svg = pictures[level], query = search.value.trim().toLowerCase();
  svg.querySelectorAll(".hit").forEach((box) => box.classList.remove("hit"));
  svg.classList.toggle("searched", query !== "");
  hits = query === "" ? [] : Object.entries(data.names[level])
    .filter(([, names]) => names.some((name) => name.toLowerCase().includes(query)))
    .map(([id]) => document.getElementById(id)).filter(Boolean);
  hits.forEach((box) => box.classList.add("hit"));
  turn = -1;
  found.textContent = query === "" ? "" : `${hits.length} found`;
  if (move && hits.length) next();
};
const next = () => {
  if (!hits.length) return;
  turn = (turn + 1) % hits.length;
  const box = hits[turn].getBBox(), scale = hits[turn].getCTM(), svg = pictures[level].getCTM();
  // From the box's own units to those of the view box.
  const corner = new DOMPoint(box.x + box.width / 2, box.y + box.height / 2)
    .matrixTransform(svg.inverse().multiply(scale));
  const width = Math.min(view[level].w, 900), height = width * view[level].h / view[level].w;
  view[level] = { x: corner.x - width / 2, y: corner.y - height / 2, w: width, h: height };
  apply();
  found.textContent = `${turn + 1} of ${hits.length}`;
};

if (frame) {
  for (const [name, svg] of Object.entries(pictures)) {
    const [x, y, w, h] = svg.getAttribute("viewBox").split(/[ ,]+/).map(Number);
    whole[name] = { x, y, w, h };
    svg.setAttribute("preserveAspectRatio", "xMinYMin meet");
  }
  frame.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = frame.getBoundingClientRect();
    zoom(Math.exp(event.deltaY * 0.0015), (event.clientX - box.left) / box.width,
         (event.clientY - box.top) / box.height);
  }, { passive: false });
  let held = null;
  frame.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, y: event.clientY, v: { ...view[level] } };
    frame.setPointerCapture(event.pointerId);
    frame.classList.add("moving");
  });
  frame.addEventListener("pointermove", (event) => {
    if (!held) return;
    const scale = held.v.w / frame.clientWidth;
    view[level] = { ...held.v, x: held.v.x - (event.clientX - held.x) * scale,
                    y: held.v.y - (event.clientY - held.y) * scale };
    apply();
  });
  for (const name of ["pointerup", "pointercancel"])
    frame.addEventListener(name, () => { held = null; frame.classList.remove("moving"); });
  for (const button of document.querySelectorAll("[data-show]"))
    button.addEventListener("click", () => show(button.dataset.show));
  document.getElementById("in").addEventListener("click", () => zoom(0.7));
  document.getElementById("out").addEventListener("click", () => zoom(1 / 0.7));
  document.getElementById("fit").addEventListener("click", fit);
  search.addEventListener("input", () => find(false));
  search.addEventListener("keydown", (event) => { if (event.key === "Enter") next(); });
  document.getElementById("next").addEventListener("click", next);
  show(data.level);
}

// Tables: sorted by a click on a heading, searched by name.
for (const table of document.querySelectorAll("table.sorted")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const key = (row, i) => row.cells[i].dataset.key ?? row.cells[i].textContent;
  heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) =>
      key(a, i).localeCompare(key(b, i), undefined, { numeric: true }));
    body.append(...(down ? rows.reverse() : rows));
  }));
}
document.getElementById("search")?.addEventListener("input", (event) => {
  const query = event.target.value.trim().toLowerCase();
  for (const row of document.getElementById("decisions").tBodies[0].rows)
    row.hidden = !row.dataset.names.toLowerCase().includes(query);
});
for (const button of document.querySelectorAll("td .find")) {
  button.addEventListener("click", () => {
    search.value = button.textContent;
    find(true);
    frame.scrollIntoView({ block: "center" });
  });
}
document.documentElement.dataset.ready = "yes";
