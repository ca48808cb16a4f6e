// The flame graph: choose what is merged and which moment, zoom into a frame, search by a regular expression. The trees
// follow each other in one table, parents before their children; each begins at depth 0.
Charts.start("flame", (figure, data, [depth, frame, category, union, ...amounts]) => {
  const moments = data.moments.length;
  const [bytes, blocks] = [amounts.slice(0, moments), amounts.slice(moments)];
  const [cells, readout, controls] = [".cells", ".readout", ".controls"].map((each) => figure.querySelector(each));
  const search = Object.assign(document.createElement("input"), { type: "search", placeholder: "Search: regular expression" });
  search.setAttribute("aria-label", "search the frames by a regular expression");
  const matches = document.createElement("output");
  controls.append(search, matches);
  const hint = readout.textContent;
  const height = 20;
  const narrowest = 0.6; // pixels
  const parent = [];
  const end = new Array(depth.length).fill(depth.length);
  const open = [];
  depth.forEach((level, row) => {
    while (open.length > level) end[open.pop()] = row;
    parent.push(level ? open[level - 1] : -1);
    open.push(row);
  });
  const roots = parent.flatMap((above, row) => (above < 0 ? [row] : []));

  let root = roots[0];
  let moment = data.isDifference ? moments : 0; // behind the last: the difference
  let zoomed = root;
  let at = null; // the frame that is told of
  let pattern = null;

  const width = (row) => (moment < moments ? bytes[moment][row] : union[row]);
  const change = (row) => bytes[1][row] - bytes[0][row];
  const names = (row) => data.frames[frame[row]];
  const within = (row) => Array.from({ length: end[row] - row }, (_, index) => row + index);

  const tell = (row) => {
    at = row;
    for (const cell of cells.children) cell.classList.toggle("here", Number(cell.dataset.row) === row);
    if (row === null) return Charts.say(readout, hint, "", "");
    const [label, place] = names(row);
    const count = moment < moments ? blocks[moment][row] : 0;
    const held = moment < moments
      ? `${Charts.size(width(row))} (${((100 * width(row)) / Math.max(1, width(root))).toFixed(1)} %) in ` +
        `${count.toLocaleString("en")} block${count === 1 ? "" : "s"}, mostly ${data.categories[category[row]][1]}`
      : `${change(row) > 0 ? "+" : ""}${Charts.size(change(row))}, ${Charts.size(bytes[0][row])} → ${Charts.size(bytes[1][row])}`;
    return Charts.say(readout, place ? held : `${label}: ${held}`, place, figure.dataset.table);
  };

  const draw = () => {
    const drawn = [];
    const whole = Math.max(1, width(zoomed));
    const strongest = Math.max(1, ...within(root).map((row) => (data.isDifference ? Math.abs(change(row)) : 0)));
    let deepest = 0;
    const add = (row, left, part, kind) => {
      const [label, place] = names(row);
      const cell = document.createElement("div");
      const found = pattern === null ? "" : pattern.test(label) || pattern.test(place) ? "found" : "faint";
      const tone = moment < moments ? data.categories[category[row]][0]
        : change(row) > 0 ? "grew" : change(row) < 0 ? "shrank" : "same";
      cell.className = `cell ${tone} ${kind} ${found}`;
      cell.style.cssText = `top:${depth[row] * height}px;left:${100 * left}%;width:${100 * part}%`;
      if (moment === moments) {
        const [low, high] = data.mix;
        cell.style.setProperty("--mix", `${change(row) ? low + ((high - low) * Math.abs(change(row))) / strongest : 0}%`);
      }
      Object.assign(cell, { textContent: label, title: place || label });
      cell.dataset.row = row;
      drawn.push(cell);
      deepest = Math.max(deepest, depth[row]);
    };
    for (let row = parent[zoomed]; row >= 0; row = parent[row]) add(row, 0, 1, "above");
    const next = []; // where the next frame of each depth begins
    for (let row = zoomed; row < end[zoomed]; ) {
      const left = row === zoomed ? 0 : next[depth[row]];
      next[depth[row]] = left + width(row) / whole;
      next[depth[row] + 1] = left;
      if ((cells.clientWidth * width(row)) / whole < narrowest) {
        row = end[row];
        continue;
      }
      add(row, left, width(row) / whole, "");
      row++;
    }
    cells.replaceChildren(...drawn);
    cells.style.height = `${(deepest + 1) * height}px`;
    figure.dataset.shown = names(zoomed)[0];
    for (const button of figure.querySelectorAll("button[data-view], button[data-moment]")) {
      const is = button.dataset.view === undefined ? Number(button.dataset.moment) === moment : roots[button.dataset.view] === root;
      button.setAttribute("aria-pressed", is);
    }
    figure.querySelector("button[data-do=reset]").disabled = zoomed === root;
    tell(at);
  };

  const zoom = (row) => {
    [zoomed, at] = [row, row];
    draw();
  };
  for (const button of figure.querySelectorAll("button[data-view]")) {
    button.addEventListener("click", () => {
      root = roots[button.dataset.view];
      zoom(root);
      look();
    });
  }
  for (const button of figure.querySelectorAll("button[data-moment]")) {
    button.addEventListener("click", () => {
      moment = Number(button.dataset.moment);
      zoom(width(zoomed) ? zoomed : root);
      look();
    });
  }
  figure.querySelector("button[data-do=reset]").addEventListener("click", () => zoom(root));

  // What is found counts once, though frames below it are found too.
  const look = () => {
    pattern = null;
    matches.textContent = "";
    try {
      if (search.value) pattern = new RegExp(search.value, "i");
    } catch {
      matches.textContent = "not a regular expression";
    }
    draw();
    if (pattern === null) return;
    let [sum, count] = [0, 0];
    for (let row = root; row < end[root]; ) {
      if (!width(row) || !names(row).some((text) => pattern.test(text))) { row++; continue; }
      sum += width(row);
      count++;
      row = end[row];
    }
    matches.textContent = `${count} frame${count === 1 ? "" : "s"}, ${Charts.size(sum)} of ${Charts.size(width(root))}`;
  };
  search.addEventListener("input", look);

  const rowOf = (event) => {
    const cell = event.target.closest(".cell");
    return cell ? Number(cell.dataset.row) : null;
  };
  cells.addEventListener("pointermove", (pointer) => tell(rowOf(pointer) ?? zoomed));
  cells.addEventListener("pointerleave", () => tell(zoomed === root ? null : zoomed));
  cells.addEventListener("click", (pointer) => { if (rowOf(pointer) !== null) zoom(rowOf(pointer)); });
  const beside = (row, step) => {
    const shown = [...cells.children].map((cell) => Number(cell.dataset.row)).filter((each) => depth[each] === depth[row]);
    return shown[shown.indexOf(row) + step] ?? row;
  };
  const pressed = {
    ArrowDown: () => tell(at === null ? zoomed : at + 1 < end[at] && width(at + 1) ? at + 1 : at),
    ArrowUp: () => tell(at === null || parent[at] < 0 ? zoomed : parent[at]),
    ArrowRight: () => tell(at === null ? zoomed : beside(at, 1)),
    ArrowLeft: () => tell(at === null ? zoomed : beside(at, -1)),
    Enter: () => zoom(at ?? zoomed),
    Escape: () => zoom(root),
  };
  cells.addEventListener("keydown", (event) => {
    if (!pressed[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    pressed[event.key]();
  });
  cells.tabIndex = 0;
  cells.setAttribute("role", "group");
  cells.setAttribute("aria-label", "frames: arrow keys to step, Enter to zoom, Escape for the whole graph");
  controls.hidden = false;
  addEventListener("resize", draw);
  draw();
});
