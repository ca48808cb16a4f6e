// The map of segments: point at a block, or step from one to the next, to read what it is.
Charts.start("segments", (figure, data, [piece, size, requested, free, count, category, site]) => {
  const map = figure.querySelector(".map");
  const readout = figure.querySelector(".readout");
  const hint = readout.textContent;
  const mark = map.appendChild(Object.assign(document.createElement("div"), { className: "here", hidden: true }));
  const begins = new Float64Array(size.length + 1);
  size.forEach((bytes, tile) => { begins[tile + 1] = begins[tile] + bytes; });
  const first = piece.map((number, tile) => (tile && piece[tile - 1] === number ? -1 : tile));
  let at = 0;

  const tileAt = (offset) => {
    let [low, high] = [0, size.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (begins[middle] <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  };
  const address = (tile) => {
    let start = tile;
    while (first[start] < 0) start--;
    const base = data.addresses[piece[tile]];
    return base ? `0x${(BigInt(base) + BigInt(begins[tile] - begins[start])).toString(16)}` : "";
  };

  const tell = (tile) => {
    at = tile;
    const blocks = count[tile];
    const name = data.categories[category[tile]];
    const what = !blocks
      ? `free gap of ${Charts.size(size[tile])}`
      : `${blocks > 1 ? `${blocks.toLocaleString("en")} blocks, mostly ${name}` : name}, ${Charts.size(size[tile] - free[tile])}` +
        `${requested[tile] !== size[tile] - free[tile] ? ` for ${Charts.size(requested[tile])} requested` : ""}` +
        `${free[tile] ? `, and ${Charts.size(free[tile])} free between them` : ""}`;
    const text = [what, address(tile), data.pieces[piece[tile]]].filter(Boolean).join(" · ");
    const place = data.sites[site[tile]];
    Charts.say(readout, text, place, figure.dataset.table);
    map.setAttribute("aria-valuenow", tile);
    map.setAttribute("aria-valuetext", `${text} ${place}`);
    const line = Math.floor(begins[tile] / data.lineBytes);
    const left = begins[tile] - line * data.lineBytes;
    mark.hidden = false;
    mark.style.top = `${(100 * line) / data.lines}%`;
    mark.style.height = `${100 / data.lines}%`;
    mark.style.left = `${(100 * left) / data.lineBytes}%`;
    mark.style.width = `${(100 * Math.min(size[tile], data.lineBytes - left)) / data.lineBytes}%`;
  };

  const pointed = (pointer) => {
    const box = map.getBoundingClientRect();
    const line = Math.min(data.lines - 1, Math.floor((data.lines * (pointer.clientY - box.top)) / box.height));
    const offset = (line + Math.min(0.999999, (pointer.clientX - box.left) / box.width)) * data.lineBytes;
    return offset < begins[size.length] ? tileAt(offset) : null;
  };
  let held = null;
  const rest = () => {
    if (held !== null) return tell(held);
    mark.hidden = true;
    Charts.say(readout, hint, "", "");
  };
  map.addEventListener("pointermove", (pointer) => {
    const tile = pointed(pointer);
    if (tile === null) rest();
    else tell(tile);
  });
  map.addEventListener("click", (pointer) => {
    held = pointed(pointer);
    rest();
  });
  map.addEventListener("pointerleave", rest);
  const pressed = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 };
  map.addEventListener("keydown", (event) => {
    if (event.key === "Escape") held = null;
    else if (pressed[event.key]) held = Math.max(0, Math.min(size.length - 1, at + (held === null ? 0 : pressed[event.key])));
    else return;
    event.preventDefault();
    rest();
  });
  map.tabIndex = 0;
  map.setAttribute("role", "slider");
  map.setAttribute("aria-label", "block in the map of segments");
  map.setAttribute("aria-valuemin", 0);
  map.setAttribute("aria-valuemax", size.length - 1);
});
