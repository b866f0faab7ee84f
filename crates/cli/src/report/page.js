"use strict";
const size = mib => mib >= 1024 ? (mib / 1024).toFixed(2) + " GiB" : mib + " MiB";
const plot = document.getElementById("ledger");
const data = document.getElementById("ledger-data");
if (plot && data) {
  const { names, points } = JSON.parse(data.textContent);
  const told = document.getElementById("ledger-told");
  const cursor = plot.querySelector(".cursor");
  let place = points.length - 1;
  const show = next => {
    place = Math.max(0, Math.min(points.length - 1, next));
    const [x, time, ...values] = points[place];
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x);
    cursor.removeAttribute("visibility");
    told.textContent = time + ": " + values.map((value, i) => names[i] + " " + size(value)).join(", ");
  };
  plot.addEventListener("pointermove", event => {
    const box = plot.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * 1000;
    let next = points.findIndex(point => point[0] >= x);
    if (next < 0) next = points.length - 1;
    if (next > 0 && x - points[next - 1][0] < points[next][0] - x) next -= 1;
    show(next);
  });
  plot.addEventListener("keydown", event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -points.length, End: points.length }[event.key];
    if (step) { event.preventDefault(); show(place + step); }
  });
}
const controls = document.getElementById("log-controls");
if (controls) {
  controls.hidden = false;
  const kind = document.getElementById("log-kind"), words = document.getElementById("log-words");
  const rows = [...document.querySelectorAll("#log tbody tr")], count = document.getElementById("log-count");
  const filter = () => {
    const wanted = words.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const is = (!kind.value || row.cells[1].textContent === kind.value) && row.textContent.toLowerCase().includes(wanted);
      row.hidden = !is;
      shown += is;
    }
    count.textContent = shown + " of " + rows.length;
  };
  kind.addEventListener("change", filter);
  words.addEventListener("input", filter);
  filter();
}
