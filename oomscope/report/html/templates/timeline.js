// The timeline: zoom, step and point. A column of the picture is the bin of those behind it in which most is live, with
// what was live then; zooming in comes down to single events as far as the page carries them.
Charts.start("timeline", (figure, data, columns) => {
  const [event, time, site, moment, reserved, ...live] = columns;
  const plot = figure.querySelector(".plot");
  const readout = figure.querySelector(".readout");
  const keys = [...figure.querySelectorAll(".key .size")];
  const [firstEnd, lastEnd] = [figure.querySelector(".end:first-child"), figure.querySelector(".end:last-child")];
  const fills = [...plot.querySelectorAll(".fill")].reverse();
  const level = plot.querySelector(".level");
  const failed = plot.querySelector(".failed");
  const mark = plot.querySelector(".peak");
  const bins = event.length;
  const total = Float64Array.from(event, (_, bin) => live.reduce((sum, curve) => sum + curve[bin], 0));
  const add = (name) => plot.appendChild(Object.assign(document.createElement("div"), { className: name }));
  const cursor = add("cursor");
  const chosen = add("chosen");

  const highest = (from, to) => {
    let best = from;
    for (let bin = from + 1; bin < to; bin++) if (total[bin] > total[best]) best = bin;
    return best;
  };
  const most = (from, to) => {
    let best = 0;
    for (let bin = from; bin < to; bin++) best = Math.max(best, reserved[bin]);
    return best;
  };
  const binOf = (number) => Math.min(bins - 1, Math.floor(number / data.perBin));
  const peak = highest(0, bins);

  let [from, to] = [0, bins]; // the bins in view
  let shown = []; // of each column: its first bin, the bin that stands for it, the most reserved
  let held = null; // the bin that a click holds
  let at = peak; // the bin that is told of

  const columnOf = (bin) => Math.ceil(((bin - from + 1) * shown.length) / (to - from)) - 1;

  const draw = () => {
    const count = Math.min(to - from, Math.max(100, Math.round(plot.clientWidth)));
    const edge = (column) => from + Math.floor((column * (to - from)) / count);
    shown = Array.from({ length: count }, (_, column) => {
      const [first, end] = [edge(column), edge(column + 1)];
      return { first, bin: highest(first, end), reserved: most(first, end) };
    });
    const all = to - from === bins;
    const totals = shown.map(({ bin }) => total[bin]);
    const line = shown.map((column) => column.reserved);
    const top = all ? Number(plot.dataset.top) : Math.max(1, ...line, ...totals);
    const x = (column) => ((column * 1000) / count).toFixed(1);
    const y = (value) => (1000 * (1 - value / top)).toFixed(1);
    const steps = (values) => values.map((value, column) => `V${y(value)}H${x(column + 1)}`).join("");
    const sums = new Float64Array(count);
    live.forEach((curve, index) => {
      shown.forEach(({ bin }, column) => { sums[column] += curve[bin]; });
      fills[index].setAttribute("d", `M0,1000${steps([...sums])}V1000Z`);
    });
    plot.querySelector(".reserved").setAttribute("d", `M0,${y(line[0])}${steps(line)}`);
    drawAxis(top);
    const onView = peak >= from && peak < to;
    mark.hidden = !onView;
    mark.style.left = `${(100 * (columnOf(peak) + 0.5)) / count}%`;
    mark.style.bottom = `${(100 * total[peak]) / top}%`;
    if (failed) {
      const bin = binOf(data.failed);
      failed.hidden = bin < from || bin >= to;
      failed.style.left = `${(100 * (columnOf(bin) + 0.5)) / count}%`;
    }
    for (const button of figure.querySelectorAll("button[data-do=out], button[data-do=reset]")) button.disabled = all;
    figure.querySelector("button[data-do=in]").disabled = to - from <= 2;
    figure.dataset.from = event[from];
    figure.dataset.to = event[to - 1];
    tell(at);
  };

  const drawAxis = (top) => {
    const grids = Charts.ticks(top).map((tick) => {
      const line = Object.assign(document.createElement("span"), { className: "grid" });
      line.style.bottom = `${(100 * tick) / top}%`;
      const textContent = tick ? Charts.size(tick, 1) : "0";
      line.append(Object.assign(document.createElement("span"), { className: "tick", textContent }));
      return line;
    });
    plot.querySelector(".grids").replaceChildren(...grids);
    if (level) {
      level.hidden = level.dataset.bytes > top;
      level.style.bottom = `${(100 * level.dataset.bytes) / top}%`;
    }
    firstEnd.textContent = `event ${event[from].toLocaleString("en")}`;
    const behind = Math.round(((to - from) * data.perBin) / shown.length);
    const each = behind > 1 ? `, about ${behind.toLocaleString("en")} events a column` : "";
    lastEnd.textContent = `event ${event[to - 1].toLocaleString("en")}${each}`;
  };

  // What a single event did, where a bin is one.
  const change = (bin) => {
    if (data.perBin > 1 || bin === 0) return "";
    const signed = (bytes) => `${bytes > 0 ? "+" : ""}${Charts.size(bytes)}`;
    const index = live.findIndex((curve) => curve[bin] !== curve[bin - 1]);
    if (index >= 0) return `${signed(live[index][bin] - live[index][bin - 1])} ${data.categories[index]}`;
    return reserved[bin] === reserved[bin - 1] ? "" : `${signed(reserved[bin] - reserved[bin - 1])} reserved`;
  };

  const tell = (bin) => {
    at = bin;
    const inView = bin >= from && bin < to;
    cursor.hidden = !inView;
    if (inView) cursor.style.left = `${(100 * (columnOf(bin) + 0.5)) / shown.length}%`;
    const parts = [
      `event ${event[bin].toLocaleString("en")}${bin === peak ? ", the peak" : ""}${bin === held ? ", held" : ""}`,
      time[bin] >= 0 ? `${(time[bin] / 1e6).toFixed(6)} s` : "",
      data.moments[moment[bin]],
      change(bin),
      `${Charts.size(total[bin])} live of ${Charts.size(reserved[bin])} reserved`,
    ];
    const text = parts.filter(Boolean).join(" · ");
    const place = data.sites[site[bin]];
    Charts.say(readout, text, place, figure.dataset.table);
    live.forEach((curve, index) => { keys[live.length - 1 - index].textContent = Charts.size(curve[bin]); });
    keys[live.length].textContent = Charts.size(reserved[bin]);
    figure.querySelector(".legend .moment").textContent = `at event ${event[bin].toLocaleString("en")}`;
    plot.setAttribute("aria-valuenow", event[bin]);
    plot.setAttribute("aria-valuetext", `${text} · ${place}`);
  };

  const look = (first, end) => {
    const span = Math.max(2, Math.min(bins, Math.round(end - first)));
    from = Math.max(0, Math.min(bins - span, Math.round(first)));
    to = from + span;
    draw();
  };
  const zoom = (factor, centre = at >= from && at < to ? at : (from + to) / 2) => {
    const part = (centre - from) / (to - from);
    const span = Math.max(2, (to - from) * factor);
    look(centre - part * span, centre + (1 - part) * span);
  };
  const show = (bin) => {
    held = at = bin;
    const span = Math.min(to - from, Math.max(Math.min(bins, 60), Math.round(bins / 16)));
    look(bin - span / 2, bin + span / 2);
  };
  const hold = (bin) => {
    held = bin;
    if (bin < from || bin >= to) look(bin - (to - from) / 2, bin + (to - from) / 2);
    tell(bin);
  };

  const actions = {
    peak: () => show(peak),
    failure: () => show(binOf(data.failed)),
    in: () => zoom(0.5),
    out: () => zoom(2),
    reset: () => look(0, bins),
  };
  for (const button of figure.querySelectorAll("button[data-do]")) {
    button.addEventListener("click", actions[button.dataset.do]);
  }

  const step = (columns) => {
    const next = shown[Math.max(0, Math.min(shown.length - 1, columnOf(at) + columns))];
    hold(at >= from && at < to ? next.bin : shown[columns > 0 ? 0 : shown.length - 1].bin);
  };
  const pressed = {
    ArrowRight: (event) => step(event.shiftKey ? 20 : 1),
    ArrowLeft: (event) => step(event.shiftKey ? -20 : -1),
    Home: () => hold(shown[0].bin),
    End: () => hold(shown[shown.length - 1].bin),
    "+": actions.in,
    "-": actions.out,
    0: actions.reset,
    p: actions.peak,
    Escape: () => { held = null; actions.reset(); },
  };
  plot.addEventListener("keydown", (event) => {
    if (!pressed[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    pressed[event.key](event);
  });

  const share = (pointer) => {
    const box = plot.getBoundingClientRect();
    return Math.max(0, Math.min(0.999999, (pointer.clientX - box.left) / box.width));
  };
  let began = null;
  plot.addEventListener("pointerdown", (pointer) => {
    if (pointer.button === 0) began = share(pointer);
  });
  plot.addEventListener("pointermove", (pointer) => {
    const now = share(pointer);
    if (began === null) return tell(shown[Math.floor(now * shown.length)].bin);
    chosen.style.left = `${100 * Math.min(began, now)}%`;
    chosen.style.width = `${100 * Math.abs(now - began)}%`;
  });
  addEventListener("pointerup", (pointer) => {
    if (began === null) return;
    const [low, high] = [began, share(pointer)].sort((a, b) => a - b);
    began = null;
    chosen.style.width = "0";
    if ((high - low) * plot.clientWidth < 5) hold(shown[Math.floor(high * shown.length)].bin);
    else look(from + low * (to - from), from + high * (to - from));
  });
  plot.addEventListener("pointerleave", () => {
    if (began === null) tell(held === null ? peak : held);
  });
  plot.addEventListener("dblclick", actions.reset);
  addEventListener("resize", draw);

  figure.querySelector(".controls").hidden = false;
  plot.tabIndex = 0;
  plot.setAttribute("role", "slider");
  plot.setAttribute("aria-label", "moment of the run");
  plot.setAttribute("aria-valuemin", event[0]);
  plot.setAttribute("aria-valuemax", event[bins - 1]);
  draw();
});
