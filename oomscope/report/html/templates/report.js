"use strict";
// What all pages share: tables that are searched and sorted, commands that are copied, and what charts are read with.
// Without this script a page holds everything, unsorted.
const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
const unitOf = (bytes) => UNITS.find(([, factor]) => Math.abs(bytes) >= factor) || ["B", 1];
const size = (bytes, { signed = false, digits = 2 } = {}) => {
  const [unit, factor] = unitOf(bytes);
  return `${signed && bytes > 0 ? "+" : ""}${(bytes / factor).toFixed(factor === 1 ? 0 : digits)} ${unit}`;
};

// The input with data-table="ID" searches that table: each word must occur in a row, stacks behind its lines apart. The
// last row sums what is shown.
const textOf = (row) => [...row.cells].map((cell) => (cell.querySelector("summary") || cell).textContent).join(" ");
for (const box of document.querySelectorAll("input[data-table]")) {
  const table = document.getElementById(box.dataset.table);
  const [body, foot] = [table.tBodies[0], table.tFoot];
  const found = box.parentNode.insertBefore(document.createElement("output"), box.nextSibling);
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body.rows) {
      const text = textOf(row).toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    const shown = [...body.rows].filter((row) => !row.hidden);
    found.textContent = words.length ? `${shown.length} of ${body.rows.length} rows` : "";
    for (const cell of foot ? foot.rows[0].cells : []) {
      if (cell.dataset.bytes === undefined) continue;
      const sum = shown.reduce((sum, row) => sum + Number(row.cells[cell.cellIndex].dataset.bytes || 0), 0);
      cell.textContent = size(sum, { signed: cell.dataset.signed !== undefined });
    }
  });

  const value = (row, column) => {
    const cell = row.cells[column];
    const number = cell.dataset.bytes ?? cell.dataset.value;
    return number === undefined ? cell.textContent : Number(number);
  };
  const compared = (one, other) => {
    if (typeof one === typeof other) return typeof one === "number" ? one - other : one.localeCompare(other);
    return typeof one === "number" ? 1 : -1; // what has no number is less than all that have one
  };
  const sort = (header) => {
    const descending = header.getAttribute("aria-sort") !== "descending";
    const column = header.cellIndex;
    const rows = [...body.rows].sort((a, b) => compared(value(a, column), value(b, column)) * (descending ? -1 : 1));
    body.append(...rows);
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  };
  for (const header of table.querySelectorAll("th[data-sort]")) {
    header.tabIndex = 0;
    header.addEventListener("click", () => sort(header));
    header.addEventListener("keydown", (event) => {
      if (event.key === "Enter") sort(header);
    });
  }
}

// A button on every block of commands copies it; where the clipboard is denied, the text is selected instead.
for (const block of document.querySelectorAll("pre.commands")) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "copy", textContent: "Copy" });
  button.setAttribute("aria-label", `Copy: ${block.getAttribute("aria-label")}`);
  const say = (text) => {
    button.textContent = text;
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(block.textContent);
      say("Copied");
    } catch {
      getSelection().selectAllChildren(block);
      say("Selected: press Ctrl+C");
    }
  });
  const frame = document.createElement("div");
  frame.className = "copied";
  block.before(frame);
  frame.append(button, block);
}

const Charts = (() => {
  // Round values up to `top`: 1, 2 or 5 times a power of ten of the unit that `top` is shown in.
  const ticks = (top) => {
    const [, unit] = unitOf(top);
    const rough = top / unit / 5;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => power * factor).find((each) => each >= rough) * unit;
    return Array.from({ length: Math.floor(top / step) + 1 }, (_, index) => index * step);
  };

  // Differences of zigzag numbers of seven bits a byte, deflated: see `packed` in charts/html.py.
  const unpack = async ({ data, rows, columns }) => {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const numbers = new Uint8Array(await new Response(stream).arrayBuffer());
    let at = 0;
    return Array.from({ length: columns }, () => {
      let last = 0;
      return Float64Array.from({ length: rows }, () => {
        let value = 0;
        for (let factor = 1; ; factor *= 128) {
          const byte = numbers[at++];
          value += (byte & 127) * factor;
          if (byte < 128) break;
        }
        return (last += value % 2 ? -(value + 1) / 2 : value / 2);
      });
    });
  };

  // A line of text about what is pointed at, and a button that looks its code line up in the table, if there is one.
  const say = (readout, text, place, table) => {
    readout.replaceChildren(text);
    if (!place) return;
    if (!table) return readout.append(" · ", place);
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "find", title: "find this line in the table", textContent: place });
    button.addEventListener("click", () => {
      const box = document.querySelector(`input[data-table="${table}"]`);
      box.value = place;
      box.dispatchEvent(new Event("input"));
      box.scrollIntoView({ block: "center" });
    });
    readout.append(" · ", button);
  };

  // What is searched for: a regular expression, plain text where it is none, null where it is empty.
  const pattern = (text) => {
    if (!text) return null;
    try {
      return new RegExp(text, "i");
    } catch {
      return new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
    }
  };

  // Call `view` with each figure that names its data, what the data say, and their columns of numbers.
  const start = async (attribute, view) => {
    for (const figure of document.querySelectorAll(`[data-${attribute}]`)) {
      const data = JSON.parse(document.getElementById(figure.dataset[attribute]).textContent);
      view(figure, data, await unpack(data));
    }
  };

  // The last of `count` places of which `holds` is true; it is true of those before it. The first where it is of none.
  const lastWhere = (count, holds) => {
    let [low, high] = [0, count - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (holds(middle)) low = middle;
      else high = middle - 1;
    }
    return low;
  };

  // Let `element` be reached by the keyboard and told of as a slider from `low` to `high`.
  const slider = (element, label, low, high) => {
    element.tabIndex = 0;
    const facts = { role: "slider", "aria-label": label, "aria-valuemin": low, "aria-valuemax": high };
    for (const [name, value] of Object.entries(facts)) element.setAttribute(name, value);
  };

  return { size: (bytes, digits = 2) => size(bytes, { digits }), ticks, unpack, pattern, say, start, lastWhere, slider };
})();
