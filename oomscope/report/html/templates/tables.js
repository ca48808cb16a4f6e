"use strict";
// Search and sort the tables of a report. A search box names its table by data-table; the last row of the table sums
// the rows that are shown. Without this script the page holds everything, unsorted.
(() => {
  const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

  const size = (bytes, signed) => {
    const sign = bytes < 0 ? "-" : signed && bytes > 0 ? "+" : "";
    const [unit, factor] = UNITS.find(([, factor]) => Math.abs(bytes) >= factor) || ["B", 1];
    return `${sign}${(Math.abs(bytes) / factor).toFixed(factor === 1 ? 0 : 2)} ${unit}`;
  };

  const value = (row, column) => {
    const cell = row.cells[column];
    const number = cell.dataset.bytes ?? cell.dataset.value;
    return number === undefined ? cell.textContent : Number(number);
  };

  const total = (table) => {
    const shown = [...table.tBodies[0].rows].filter((row) => !row.hidden);
    for (const cell of table.tFoot.rows[0].cells) {
      if (cell.dataset.bytes === undefined) continue;
      const sum = shown.reduce((sum, row) => sum + Number(row.cells[cell.cellIndex].dataset.bytes), 0);
      cell.textContent = size(sum, cell.dataset.signed !== undefined);
    }
    table.tFoot.querySelector("[data-rows]").textContent = `${shown.length} of ${table.tBodies[0].rows.length} rows`;
  };

  const sort = (table, header) => {
    const descending = header.getAttribute("aria-sort") !== "descending";
    const column = header.cellIndex;
    const compare = (a, b) => {
      const [one, other] = [value(a, column), value(b, column)];
      return typeof one === "number" ? one - other : one.localeCompare(other);
    };
    const rows = [...table.tBodies[0].rows].sort((a, b) => (descending ? compare(b, a) : compare(a, b)));
    table.tBodies[0].append(...rows);
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  };

  for (const box of document.querySelectorAll("input[data-table]")) {
    const table = document.getElementById(box.dataset.table);
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
      total(table);
    });
    for (const header of table.querySelectorAll("th[data-sort]")) {
      header.tabIndex = 0;
      header.addEventListener("click", () => sort(table, header));
      header.addEventListener("keydown", (event) => {
        if (event.key === "Enter") sort(table, header);
      });
    }
  }
})();
