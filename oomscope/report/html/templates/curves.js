// Curves over each other: point at a place, or step with the arrow keys, to read every curve and what the runs differ by.
Charts.start("curves", (figure, data, [place, ...values]) => {
  const plot = figure.querySelector(".plot");
  const cursor = plot.appendChild(Object.assign(document.createElement("div"), { className: "cursor", hidden: true }));
  const readout = figure.appendChild(Object.assign(document.createElement("p"), { className: "readout soft" }));
  const hint = "Point at the curves, or use the arrow keys, to read them.";
  readout.textContent = hint;
  readout.setAttribute("aria-live", "polite");
  // The later run's curves are the second half; each is compared with the one of the earlier run.
  const half = values.length / 2;
  let at = null;

  const tell = (row) => {
    at = row;
    cursor.hidden = row === null;
    if (row === null) {
      readout.textContent = hint;
      return;
    }
    const share = place[row] / data.parts;
    cursor.style.left = `${100 * share}%`;
    const stretch = data.stretches.filter(([, start]) => start <= share + 1e-9).pop();
    const known = (curve) => values[curve][row] >= 0;
    const parts = data.labels.map((label, curve) => `${label} ${known(curve) ? Charts.size(values[curve][row]) : "ended"}`);
    if (Number.isInteger(half) && half > 0 && known(0) && known(half)) {
      const more = values[half][row] - values[0][row];
      parts.push(`difference ${more > 0 ? "+" : ""}${Charts.size(more)}`);
    }
    readout.textContent = [stretch ? stretch[0] : "", ...parts].filter(Boolean).join(" · ");
    plot.setAttribute("aria-valuenow", row);
    plot.setAttribute("aria-valuetext", readout.textContent);
  };
  const rowAt = (share) => {
    let best = 0;
    for (let row = 1; row < place.length; row++) {
      if (Math.abs(place[row] - share * data.parts) < Math.abs(place[best] - share * data.parts)) best = row;
    }
    return best;
  };
  plot.addEventListener("pointermove", (pointer) => {
    const box = plot.getBoundingClientRect();
    tell(rowAt((pointer.clientX - box.left) / box.width));
  });
  plot.addEventListener("pointerleave", () => tell(null));
  const steps = { ArrowRight: 1, ArrowLeft: -1 };
  plot.addEventListener("keydown", (key) => {
    if (key.key === "Escape") tell(null);
    else if (steps[key.key]) tell(Math.max(0, Math.min(place.length - 1, (at === null ? 0 : at) + steps[key.key] * (key.shiftKey ? 20 : 1))));
    else return;
    key.preventDefault();
  });
  Charts.slider(plot, "place on the axis", 0, place.length - 1);
});
