// The map of segments at any moment that the page knows: it follows the timeline, and its slider leads the timeline.
// Point at a block, or step from one to the next, to read what it is. Segments lie where they lie at every moment.
Charts.start("segments", async (figure, data, columns) => {
  const [event, narrow, ...sums] = columns;
  const inNarrow = sums.slice(0, data.folded.length);
  const small = sums.slice(data.folded.length, -1);
  const smallCount = sums[sums.length - 1];
  const pages = await Charts.unpack(data.pages);
  const blocks = await Charts.unpack(data.blocks);
  const [pageAt, pageSize, pageEnter, pageLeave, pageArea, pageOffset] = pages;
  const [at, size, beyond, requested, enter, lasts, givenUp, category, site] = blocks;
  const [width, height] = [1000, 20];
  const [gap, pending] = [0, data.styles.length - 1];
  const map = figure.querySelector(".map");
  const svg = map.querySelector("svg");
  const readout = figure.querySelector(".readout");
  const legend = figure.querySelector(".legend");
  const slider = figure.querySelector(".moments");
  const hint = readout.textContent;
  const mark = map.appendChild(Object.assign(document.createElement("div"), { className: "here", hidden: true }));
  let lines = Math.round(map.clientHeight / height);
  let wanted = null; // what a search marks
  let moment = data.shown;
  let tiles = []; // of this moment, in the order of the map
  let held = null; // the tile that a click holds
  let now = 0; // the tile that is told of

  // The tiles of a moment: blocks, and what is free between them in the memory that is held.
  const tilesAt = () => {
    const found = [];
    let block = 0;
    const isThere = (row) => enter[row] <= moment && moment < enter[row] + lasts[row];
    for (let page = 0; page < pageAt.length; page++) {
      if (pageEnter[page] > moment || pageLeave[page] <= moment) continue;
      let place = pageAt[page];
      const end = place + pageSize[page];
      while (block < at.length && at[block] + size[block] <= place) block++;
      for (let row = block; row < at.length && at[row] < end; row++) {
        if (!isThere(row) || at[row] + size[row] <= place) continue;
        if (at[row] > place) found.push({ at: place, size: at[row] - place, row: -1, page, kind: gap });
        const isPending = moment >= enter[row] + lasts[row] - givenUp[row];
        const until = Math.min(end, at[row] + size[row]);
        found.push({ at: Math.max(place, at[row]), size: until - Math.max(place, at[row]), row, page, kind: isPending ? pending : category[row] });
        place = until;
      }
      if (place < end) found.push({ at: place, size: end - place, row: -1, page, kind: gap });
    }
    let place = data.foldedAt;
    let free = narrow[moment];
    inNarrow.forEach((curve, index) => {
      if (!curve[moment]) return;
      found.push({ at: place, size: curve[moment], row: -1, page: -1, kind: data.folded[index] });
      place += curve[moment];
      free -= curve[moment];
    });
    if (free > 0) found.push({ at: place, size: free, row: -1, page: -1, kind: gap });
    return found.sort((one, other) => one.at - other.at);
  };

  const boxesOf = (tile) => {
    const parts = [];
    const end = tile.at + tile.size;
    for (let place = tile.at; place < end; ) {
      const line = Math.floor(place / data.lineBytes);
      const stop = Math.min(end, (line + 1) * data.lineBytes);
      const x = (bytes) => (((bytes - line * data.lineBytes) * width) / data.lineBytes).toFixed(2);
      parts.push(`M${x(place)},${line * height + 2}H${x(stop)}v${height - 4}H${x(place)}z`);
      place = stop;
    }
    return parts.join("");
  };

  const path = (style, d) => {
    const element = document.createElementNS(svg.namespaceURI, "path");
    element.setAttribute("class", style);
    element.setAttribute("d", d);
    return element;
  };

  const draw = () => {
    tiles = tilesAt();
    lines = Math.max(1, data.lines);
    map.style.height = `${lines * height}px`;
    svg.setAttribute("viewBox", `0 0 ${width} ${lines * height}`);
    const fills = data.styles.map(() => "");
    const totals = data.styles.map(() => 0);
    let found = "";
    for (const tile of tiles) {
      const box = boxesOf(tile);
      fills[tile.kind] += box;
      totals[tile.kind] += tile.size;
      if (wanted && tile.row >= 0 && wanted.test(data.sites[site[tile.row]])) found += box;
    }
    small.forEach((curve, index) => {
      totals[data.small[index]] += curve[moment];
      totals[gap] -= curve[moment];
    });
    let walls = "";
    tiles.forEach((tile, index) => {
      const last = tiles[index - 1];
      const begins = !last || last.page !== tile.page || last.at + last.size !== tile.at;
      const goesOn = last && last.page >= 0 && tile.page >= 0 && pageArea[last.page] === pageArea[tile.page];
      if (begins && !(goesOn && last.at + last.size === tile.at)) walls += wall(tile.at);
    });
    const end = tiles.length ? tiles[tiles.length - 1].at + tiles[tiles.length - 1].size : 0;
    svg.replaceChildren(
      ...fills.map((d, kind) => (d ? path(`fill ${data.styles[kind]}`, d) : null)).filter(Boolean),
      path("found", found),
      path("walls", walls + (end < lines * data.lineBytes ? wall(end) : "")),
    );
    const order = [...data.styles.keys()].slice(1).concat(gap).filter((kind) => totals[kind] > 0);
    legend.replaceChildren(...order.map((kind) => {
      const key = Object.assign(document.createElement("span"), { className: `key ${data.styles[kind]}` });
      const bytes = Object.assign(document.createElement("span"), { className: "size", textContent: Charts.size(totals[kind]) });
      key.append(`${data.categories[kind]} `, bytes);
      return key;
    }));
    map.setAttribute("aria-valuemax", Math.max(0, tiles.length - 1));
    figure.dataset.event = event[moment];
  };
  const wall = (place) => {
    const line = Math.floor(place / data.lineBytes);
    const x = ((place - line * data.lineBytes) * width) / data.lineBytes;
    return `M${x.toFixed(2)},${line * height + 1}v${height - 2}`;
  };

  const address = (tile) => {
    const base = BigInt(data.addresses[pageArea[tile.page]]);
    return `0x${(base + BigInt(pageOffset[tile.page] + tile.at - pageAt[tile.page])).toString(16)}`;
  };
  const textOf = (tile) => {
    const name = data.categories[tile.kind];
    if (tile.page < 0) return `${Charts.size(tile.size)} ${name} in segments too narrow to draw, together ${Charts.size(narrow[moment])}`;
    const segment = data.areas[pageArea[tile.page]];
    if (tile.row < 0) {
      const unsure = smallCount[moment] ? ", or blocks too small to draw" : "";
      return `free gap of ${Charts.size(tile.size)}${unsure} · ${address(tile)} · ${segment}`;
    }
    const whole = size[tile.row] + beyond[tile.row];
    const asked = requested[tile.row] === whole ? "" : ` for ${Charts.size(requested[tile.row])} requested`;
    const was = tile.kind === pending ? `, was ${data.categories[category[tile.row]]}` : "";
    return `${name}${was}, ${Charts.size(whole)}${asked} · ${address(tile)} · ${segment}`;
  };

  const tell = (index) => {
    now = index;
    const tile = tiles[index];
    const text = textOf(tile);
    const place = tile.row < 0 ? "" : data.sites[site[tile.row]];
    Charts.say(readout, text, place, figure.dataset.table);
    map.setAttribute("aria-valuenow", index);
    map.setAttribute("aria-valuetext", `${text} ${place}`);
    const line = Math.floor(tile.at / data.lineBytes);
    const left = tile.at - line * data.lineBytes;
    mark.hidden = false;
    mark.style.top = `${(100 * line) / lines}%`;
    mark.style.height = `${100 / lines}%`;
    mark.style.left = `${(100 * left) / data.lineBytes}%`;
    mark.style.width = `${(100 * Math.min(tile.size, data.lineBytes - left)) / data.lineBytes}%`;
  };

  const pointed = (pointer) => {
    const box = map.getBoundingClientRect();
    const line = Math.min(lines - 1, Math.floor((lines * (pointer.clientY - box.top)) / box.height));
    const offset = (line + Math.min(0.999999, (pointer.clientX - box.left) / box.width)) * data.lineBytes;
    const found = tiles.findIndex((tile) => tile.at <= offset && offset < tile.at + tile.size);
    return found < 0 ? null : found;
  };
  const rest = () => {
    if (held !== null && held < tiles.length) return tell(held);
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
  map.addEventListener("keydown", (key) => {
    if (key.key === "Escape") held = null;
    else if (pressed[key.key]) held = Math.max(0, Math.min(tiles.length - 1, now + (held === null ? 0 : pressed[key.key])));
    else return;
    key.preventDefault();
    rest();
  });

  // The last moment that is not after an event.
  const momentOf = (wantedEvent) => Charts.lastWhere(event.length, (at) => event[at] <= wantedEvent);
  const show = (next) => {
    if (next === moment) return;
    moment = next;
    if (slider) {
      slider.value = moment;
      figure.querySelector(".when").textContent = `after event ${event[moment].toLocaleString("en")}`;
    }
    held = null;
    draw();
    rest();
  };
  const own = figure.dataset.segments.replace("segments", "timeline");
  let leads = false;
  document.addEventListener("moment", ({ detail }) => {
    if (!leads && detail.timeline === own) show(momentOf(detail.event));
  });
  document.addEventListener("seek", ({ detail }) => {
    if (detail.timeline !== own) return;
    wanted = detail.wanted;
    draw();
  });
  const lead = (next) => {
    show(next);
    leads = true;
    document.dispatchEvent(new CustomEvent("moment", { detail: { from: figure, timeline: own, event: event[next] } }));
    leads = false;
  };
  if (slider) {
    slider.max = event.length - 1;
    slider.value = moment;
    figure.querySelector(".controls").hidden = false;
    figure.querySelector(".when").textContent = `after event ${event[moment].toLocaleString("en")}`;
    slider.addEventListener("input", () => lead(Number(slider.value)));
    figure.querySelector(".controls button").addEventListener("click", () => lead(data.shown));
  }
  tiles = tilesAt();
  Charts.slider(map, "block in the map of segments", 0, Math.max(0, tiles.length - 1));
});
