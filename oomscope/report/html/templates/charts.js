"use strict";
// What the charts of a report share: columns of numbers out of the page, sizes for people, and a way into the tables.
const Charts = (() => {
  const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

  const size = (bytes, digits = 2) => {
    const [unit, factor] = UNITS.find(([, factor]) => Math.abs(bytes) >= factor) || ["B", 1];
    return `${(bytes / factor).toFixed(factor === 1 ? 0 : digits)} ${unit}`;
  };

  // Round values up to `top`: 1, 2 or 5 times a power of ten of the unit that `top` is shown in.
  const ticks = (top) => {
    const [, unit] = UNITS.find(([, factor]) => top >= factor) || ["B", 1];
    const rough = top / unit / 5;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => power * factor).find((each) => each >= rough) * unit;
    return Array.from({ length: Math.floor(top / step) + 1 }, (_, index) => index * step);
  };

  // Differences of zigzag numbers of seven bits a byte, deflated: see packed.py.
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

  const find = (table, text) => {
    const box = document.querySelector(`input[data-table="${table}"]`);
    box.value = text;
    box.dispatchEvent(new Event("input"));
    box.scrollIntoView({ block: "center" });
  };

  // A line of text about what is pointed at, and a button that looks its code line up in the table.
  const say = (readout, text, place, table) => {
    readout.replaceChildren(text);
    if (!place) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "find";
    button.title = "find this line in the table";
    button.textContent = place;
    button.addEventListener("click", () => find(table, place));
    readout.append(" · ", button);
  };

  const start = async (attribute, view) => {
    for (const figure of document.querySelectorAll(`[data-${attribute}]`)) {
      const data = JSON.parse(document.getElementById(figure.dataset[attribute]).textContent);
      view(figure, data, await unpack(data));
    }
  };

  return { size, ticks, say, start };
})();
