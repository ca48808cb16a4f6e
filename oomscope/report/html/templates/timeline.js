// The timeline: zoom, step, point and search. A column of the picture is the bin of those behind it in which most is
// live, with what was live then; zooming in comes down to single events as far as the page carries them.
// The map of segments follows: both tell each other the moment by a "moment" event on the document.
Charts.start("timeline", (figure, data, columns) => {
  const [event, time, site, moment, reserved, ...live] = columns;
  const plot = figure.querySelector(".plot");
  const frame = figure.querySelector(".frame");
  const readout = figure.querySelector(".readout");
  const keys = [...figure.querySelectorAll(".key .size")];
  const fills = [...plot.querySelectorAll(".fill")].reverse();
  const level = plot.querySelector(".level");
  const failed = plot.querySelector(".failed");
  const mark = plot.querySelector(".peak");
  const bins = event.length;
  const total = Float64Array.from(event, (_, bin) => live.reduce((sum, curve) => sum + curve[bin], 0));
  const add = (parent, name) => parent.appendChild(Object.assign(document.createElement("div"), { className: name }));
  const matches = add(plot, "matches");
  const cursor = add(plot, "cursor");
  const chosen = add(plot, "chosen");
  const ticks = frame.querySelector(".stretches");
  const bands = [...frame.querySelectorAll(".band-row")];
  const seek = figure.querySelector(".seek");
  const number = (value) => value.toLocaleString("en");

  // Where each bin begins on the axis, and where the last one ends: in microseconds, or in bins.
  const axes = { event: Float64Array.from({ length: bins + 1 }, (_, bin) => bin) };
  if (data.timed) {
    axes.time = new Float64Array(bins + 1);
    for (let bin = 1; bin < bins; bin++) axes.time[bin] = Math.max(time[bin], axes.time[bin - 1]);
    axes.time[bins] = axes.time[bins - 1] + Math.max(1, Math.floor(axes.time[bins - 1] / bins));
  }
  let edges = data.byTime ? axes.time : axes.event;

  // The bin that stands at a place of the axis.
  const binAt = (place) => Charts.lastWhere(bins, (bin) => edges[bin] <= place);
  const slot = (when) => Math.floor(when / data.perBin);
  const binOf = (wanted) => Charts.lastWhere(bins, (bin) => slot(event[bin]) <= slot(wanted));
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
  const peak = highest(0, bins);
  const resting = data.shown === null ? peak : binOf(Math.max(0, data.shown));

  let [low, high] = [0, edges[bins]]; // what of the axis is in view
  let shown = []; // of each column: its first bin, the bin that stands for it, the most reserved
  let held = null; // the bin that a click holds
  let at = resting; // the bin that is told of
  let found = []; // the bins that a search found

  const middleOf = (bin) => (edges[bin] + edges[bin + 1]) / 2;
  const across = (place) => (place - low) / (high - low);
  const isSeen = (bin) => edges[bin + 1] > low && edges[bin] < high;
  const columnOf = (bin) => Math.max(0, Math.min(shown.length - 1, Math.floor(across(middleOf(bin)) * shown.length)));

  const draw = () => {
    const count = Math.max(100, Math.round(plot.clientWidth));
    const edge = (column) => low + (column * (high - low)) / count;
    shown = Array.from({ length: count }, (_, column) => {
      const first = binAt(edge(column));
      let end = binAt(edge(column + 1));
      if (edges[end] < edge(column + 1)) end += 1;
      end = Math.max(first + 1, Math.min(bins, end));
      // A bin that began in an earlier column counts here only where no other begins.
      const from = edges[first] < edge(column) && end > first + 1 ? first + 1 : first;
      return { bin: highest(from, end), reserved: most(from, end) };
    });
    const all = low === 0 && high === edges[bins];
    const totals = shown.map(({ bin }) => total[bin]);
    const line = shown.map((column) => column.reserved);
    const top = all ? Number(plot.dataset.top) : Math.max(1, ...line, ...totals);
    const x = (column) => ((column * 1000) / count).toFixed(1);
    const y = (value) => (1000 * (1 - value / top)).toFixed(1);
    const steps = (values) => {
      let path = "";
      for (let column = 0; column < count; column++) {
        if (column === 0 || values[column] !== values[column - 1]) path += `H${x(column)}V${y(values[column])}`;
      }
      return `${path}H1000`;
    };
    const sums = new Float64Array(count);
    live.forEach((curve, index) => {
      shown.forEach(({ bin }, column) => { sums[column] += curve[bin]; });
      fills[index].setAttribute("d", `M0,1000${steps(sums)}V1000Z`);
    });
    plot.querySelector(".reserved").setAttribute("d", `M0,${y(line[0])}${steps(line)}`);
    drawAxis(top);
    drawBands();
    mark.hidden = !isSeen(peak);
    mark.style.left = `${100 * across(middleOf(peak))}%`;
    mark.style.bottom = `${(100 * total[peak]) / top}%`;
    if (failed) {
      const bin = binOf(data.failed);
      failed.hidden = !isSeen(bin);
      failed.style.left = `${100 * across(middleOf(bin))}%`;
    }
    drawIncidents();
    drawMatches();
    for (const button of figure.querySelectorAll("button[data-do=out], button[data-do=reset]")) button.disabled = all;
    const seen = binAt(high - 1e-9 * (high - low)) - binAt(low);
    figure.querySelector("button[data-do=in]").disabled = seen < 2;
    figure.dataset.from = event[binAt(low)];
    figure.dataset.to = event[binAt(high - 1e-9 * (high - low))];
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
    const isTimed = edges === axes.time;
    const scale = isTimed ? 1 : data.perBin;
    const [unit, name] = isTimed ? [[1e6, "s"], [1e3, "ms"], [1, "µs"]].find(([each]) => high - low >= each) || [1, "µs"] : [1, ""];
    const [from, to] = [(low * scale) / unit, (high * scale) / unit];
    const wanted = plot.clientWidth < 600 ? 3 : 6;
    const power = 10 ** Math.floor(Math.log10((to - from) / wanted));
    const nice = [1, 2, 5, 10].map((factor) => power * factor).find((each) => each >= (to - from) / wanted);
    const step = isTimed ? nice : Math.max(1, nice);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const points = [];
    for (let tick = Math.ceil(from / step - 1e-9) || 0; tick * step < to; tick++) {
      const text = isTimed ? `${(tick * step).toFixed(digits)} ${name}` : number(Math.round(tick * step));
      const point = Object.assign(document.createElement("span"), { className: "point", textContent: text });
      const share = across((tick * step * unit) / scale);
      if (share < 0.02) point.classList.add("first");
      if (share > 0.96) continue;
      point.style.left = `${100 * share}%`;
      points.push(point);
    }
    ticks.replaceChildren(...points);
  };

  const drawBands = () => {
    data.bands.forEach((band, row) => {
      const paths = {};
      const names = [];
      for (let column = 0; column < shown.length; ) {
        const [text, style] = band.of[moment[shown[column].bin]];
        let end = column + 1;
        while (end < shown.length && band.of[moment[shown[end].bin]][0] === text) end++;
        if (style) {
          const [left, right] = [(1000 * column) / shown.length, (1000 * end) / shown.length];
          paths[style] = `${paths[style] || ""}M${left.toFixed(1)},0H${right.toFixed(1)}V1H${left.toFixed(1)}z`;
          if ((end - column) * (plot.clientWidth / shown.length) >= 12 + 7 * text.length) {
            const name = Object.assign(document.createElement("span"), { className: "band-text", textContent: text });
            Object.assign(name.style, { left: `${left / 10}%`, width: `${(right - left) / 10}%` });
            names.push(name);
          }
        }
        column = end;
      }
      const svg = bands[row].querySelector("svg");
      svg.replaceChildren(...Object.entries(paths).map(([style, d]) => {
        const path = document.createElementNS(svg.namespaceURI, "path");
        path.setAttribute("class", style);
        path.setAttribute("d", d);
        return path;
      }));
      for (const old of bands[row].querySelectorAll(".band-text")) old.remove();
      bands[row].append(...names);
    });
  };

  const incidents = data.incidents.map(([when, kind, text]) => ({ bin: binOf(when), kind, text }));
  const drawIncidents = () => {
    for (const old of plot.querySelectorAll(".incident")) old.remove();
    const taken = new Set();
    for (const { bin, kind, text } of incidents) {
      const place = `${kind} ${columnOf(bin) >> 2}`; // marks side by side are one
      if (!isSeen(bin) || taken.has(place)) continue;
      taken.add(place);
      const sign = add(plot, `incident ${kind}`);
      sign.style.left = `${100 * across(middleOf(bin))}%`;
      sign.style.bottom = "100%";
      sign.title = `${text}, at event ${number(event[bin])}`;
    }
  };

  const drawMatches = () => {
    const spots = new Set(found.filter(isSeen).map(columnOf));
    matches.replaceChildren(...[...spots].slice(0, 2000).map((column) => {
      const spot = document.createElement("span");
      spot.style.left = `${(100 * column) / shown.length}%`;
      return spot;
    }));
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
    cursor.hidden = !isSeen(bin);
    cursor.style.left = `${100 * across(Math.max(low, Math.min(high, middleOf(bin))))}%`;
    const near = incidents.filter((each) => each.bin === bin).map((each) => each.text);
    const parts = [
      `event ${number(event[bin])}${bin === peak ? ", the peak" : ""}${bin === held ? ", held" : ""}`,
      time[bin] >= 0 ? `${(time[bin] / 1e6).toFixed(6)} s` : "",
      data.moments[moment[bin]],
      ...new Set(near),
      change(bin),
      `${Charts.size(total[bin])} live of ${Charts.size(reserved[bin])} reserved`,
    ];
    const text = parts.filter(Boolean).join(" · ");
    const place = data.sites[site[bin]];
    Charts.say(readout, text, place, figure.dataset.table);
    live.forEach((curve, index) => { keys[live.length - 1 - index].textContent = Charts.size(curve[bin]); });
    keys[live.length].textContent = Charts.size(reserved[bin]);
    figure.querySelector(".legend .moment").textContent = `at event ${number(event[bin])}`;
    plot.setAttribute("aria-valuenow", event[bin]);
    plot.setAttribute("aria-valuetext", `${text} · ${place}`);
    const detail = { from: figure, timeline: figure.dataset.timeline, event: event[bin] };
    document.dispatchEvent(new CustomEvent("moment", { detail }));
  };

  const look = (from, to) => {
    const least = edges === axes.event ? 2 : Math.max(1, edges[bins] / 1e9);
    const span = Math.max(Math.min(least, edges[bins]), Math.min(edges[bins], to - from));
    low = Math.max(0, Math.min(edges[bins] - span, from));
    high = low + span;
    if (edges === axes.event) [low, high] = [Math.round(low), Math.round(low) + Math.max(2, Math.round(span))];
    high = Math.min(high, edges[bins]);
    draw();
  };
  const zoom = (factor, centre = isSeen(at) ? middleOf(at) : (low + high) / 2) => {
    const part = across(centre);
    const span = (high - low) * factor;
    look(centre - part * span, centre + (1 - part) * span);
  };
  const show = (bin) => {
    held = at = bin;
    const [from, to] = [Math.max(0, bin - 30), Math.min(bins, bin + 30)];
    const span = Math.min(high - low, Math.max(edges[to] - edges[from], edges[bins] / 16));
    look(middleOf(bin) - span / 2, middleOf(bin) + span / 2);
  };
  const hold = (bin) => {
    held = bin;
    if (middleOf(bin) < low || middleOf(bin) > high) {
      at = bin;
      return look(middleOf(bin) - (high - low) / 2, middleOf(bin) + (high - low) / 2);
    }
    tell(bin);
  };
  const nextOf = (list, back) => {
    if (!list.length) return;
    const [beyond, first] = back
      ? [list.filter((bin) => bin < at).pop(), list[list.length - 1]]
      : [list.find((bin) => bin > at), list[0]];
    hold(beyond === undefined ? first : beyond);
  };

  const axisButton = figure.querySelector("button[data-do=axis]");
  const actions = {
    peak: () => show(peak),
    failure: () => show(binOf(data.failed)),
    in: () => zoom(0.5),
    out: () => zoom(2),
    reset: () => look(0, edges[bins]),
    incident: (pressed) => nextOf(incidents.map((each) => each.bin), pressed && pressed.shiftKey),
    axis: () => {
      const [from, to] = [binAt(low), binAt(high - 1e-9 * (high - low))];
      edges = edges === axes.event ? axes.time : axes.event;
      axisButton.textContent = edges === axes.event ? "By time" : "By event";
      if (from === 0 && to === bins - 1) look(0, edges[bins]);
      else look(edges[from], edges[to + 1]);
    },
  };
  for (const button of figure.querySelectorAll("button[data-do]")) {
    button.addEventListener("click", actions[button.dataset.do]);
  }

  // What is searched for is a regular expression, or else plain text, in lines of code, phases and iterations.
  const search = () => {
    const wanted = Charts.pattern(seek.value);
    const hit = (texts) => texts.map((text) => wanted !== null && wanted.test(text));
    const [sites, moments] = [hit(data.sites), hit(data.moments)];
    found = [];
    for (let bin = 0; wanted !== null && bin < bins; bin++) if (sites[site[bin]] || moments[moment[bin]]) found.push(bin);
    const shownOf = data.perBin > 1 ? "columns" : "events";
    figure.querySelector(".found").textContent = wanted === null ? "" : `${number(found.length)} of ${number(bins)} ${shownOf}`;
    drawMatches();
    document.dispatchEvent(new CustomEvent("seek", { detail: { timeline: figure.dataset.timeline, wanted } }));
  };
  seek.addEventListener("input", search);
  seek.addEventListener("keydown", (pressed) => {
    if (pressed.key === "Enter") nextOf(found, pressed.shiftKey);
    if (pressed.key === "Escape") {
      seek.value = "";
      search();
      plot.focus();
    }
  });

  const step = (columns) => {
    if (!isSeen(at)) return hold(shown[columns > 0 ? 0 : shown.length - 1].bin);
    const forward = columns > 0;
    let [column, bin] = [columnOf(at), at];
    for (let left = Math.abs(columns); left > 0; left--) {
      while (column >= 0 && column < shown.length && shown[column].bin === bin) column += forward ? 1 : -1;
      if (column < 0 || column >= shown.length) break;
      bin = shown[column].bin;
    }
    hold(bin);
  };
  const pressed = {
    ArrowRight: (key) => step(key.shiftKey ? 20 : 1),
    ArrowLeft: (key) => step(key.shiftKey ? -20 : -1),
    Home: () => hold(shown[0].bin),
    End: () => hold(shown[shown.length - 1].bin),
    "+": actions.in,
    "-": actions.out,
    0: actions.reset,
    p: actions.peak,
    m: actions.incident,
    M: actions.incident,
    n: () => nextOf(found, false),
    N: () => nextOf(found, true),
    "/": () => seek.focus(),
    Escape: () => { held = null; actions.reset(); },
  };
  plot.addEventListener("keydown", (key) => {
    if (!pressed[key.key] || key.ctrlKey || key.metaKey || key.altKey) return;
    key.preventDefault();
    pressed[key.key](key);
  });

  const share = (pointer) => {
    const box = plot.getBoundingClientRect();
    return Math.max(0, Math.min(0.999999, (pointer.clientX - box.left) / box.width));
  };
  const binUnder = (pointer) => shown[Math.floor(share(pointer) * shown.length)].bin;
  let began = null;
  plot.addEventListener("pointerdown", (pointer) => {
    if (pointer.button === 0) began = share(pointer);
  });
  plot.addEventListener("pointermove", (pointer) => {
    const now = share(pointer);
    if (began === null) return tell(binUnder(pointer));
    chosen.style.left = `${100 * Math.min(began, now)}%`;
    chosen.style.width = `${100 * Math.abs(now - began)}%`;
  });
  addEventListener("pointerup", (pointer) => {
    if (began === null) return;
    const [first, last] = [began, share(pointer)].sort((a, b) => a - b);
    began = null;
    chosen.style.width = "0";
    if ((last - first) * plot.clientWidth < 5) hold(binUnder(pointer));
    else look(low + first * (high - low), low + last * (high - low));
  });
  plot.addEventListener("pointerleave", () => {
    if (began === null) tell(held === null ? resting : held);
  });
  plot.addEventListener("dblclick", actions.reset);
  plot.addEventListener("wheel", (wheel) => {
    if (!wheel.ctrlKey && !wheel.metaKey) return;
    wheel.preventDefault();
    zoom(wheel.deltaY > 0 ? 1.25 : 0.8, low + share(wheel) * (high - low));
  }, { passive: false });
  // Dragging along the bands, or the axis, moves the moment.
  for (const strip of frame.querySelectorAll(".bands, .stretches")) {
    const move = (pointer) => hold(binUnder(pointer));
    strip.addEventListener("pointerdown", (pointer) => {
      if (pointer.isTrusted) strip.setPointerCapture(pointer.pointerId);
      move(pointer);
    });
    strip.addEventListener("pointermove", (pointer) => { if (pointer.buttons & 1) move(pointer); });
  }
  document.addEventListener("moment", ({ detail }) => {
    if (detail.from !== figure && detail.timeline === figure.dataset.timeline) hold(binOf(Math.max(0, detail.event)));
  });
  addEventListener("resize", draw);

  figure.querySelector(".controls").hidden = false;
  Charts.slider(plot, "moment of the run", event[0], event[bins - 1]);
  draw();
});
