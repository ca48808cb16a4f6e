"use strict";
// The range of a search: a place is pointed at or stepped to, and its commit is told with what is known of it.
for (const figure of document.querySelectorAll("[data-range]")) {
  const data = JSON.parse(document.getElementById(figure.dataset.range).textContent);
  const frame = figure.querySelector(".frame");
  const readout = figure.insertBefore(document.createElement("p"), figure.firstChild);
  const cursor = frame.appendChild(document.createElement("div"));
  readout.className = "readout";
  cursor.className = "cursor";
  const words = {
    good: "good", bad: "bad", untestable: "untestable",
    before: "not looked into; it lies before a good commit",
    after: "not looked into; it lies after a bad commit",
    open: "not looked into, and not ruled out",
  };
  const standings = data.standings.flatMap(([standing, length]) => Array(length).fill(standing));
  const probed = Object.keys(data.answers).map(Number).sort((a, b) => a - b);
  let held = data.start;

  const tell = (place) => {
    const name = data.names[place] || "";
    const what = (data.answers[place] || [words[standings[place]]]).join(" · ");
    const culprit = place === data.culprit ? ", at fault" : "";
    const text = `${place.toLocaleString("en")} of ${(data.count - 1).toLocaleString("en")}${culprit} · ${name} · ${what}`;
    readout.textContent = text.replace(" ·  · ", " · ");
    cursor.style.left = `${(100 * (place + 0.5)) / data.count}%`;
    frame.setAttribute("aria-valuenow", place);
    frame.setAttribute("aria-valuetext", readout.textContent);
  };
  const hold = (place) => {
    held = Math.max(0, Math.min(data.count - 1, place));
    tell(held);
  };
  const next = (steps) => {
    const beyond = steps > 0 ? probed.filter((place) => place > held) : probed.filter((place) => place < held).reverse();
    if (beyond.length) hold(beyond[0]);
  };
  const pressed = {
    ArrowRight: (event) => hold(held + (event.shiftKey ? 10 : 1)),
    ArrowLeft: (event) => hold(held - (event.shiftKey ? 10 : 1)),
    PageDown: () => next(1),
    PageUp: () => next(-1),
    Home: () => hold(0),
    End: () => hold(data.count - 1),
    Escape: () => hold(data.start),
  };
  frame.addEventListener("keydown", (event) => {
    if (!pressed[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    pressed[event.key](event);
  });
  const placeOf = (pointer) => {
    const bounds = frame.getBoundingClientRect();
    const part = Math.max(0, Math.min(0.999999, (pointer.clientX - bounds.left) / bounds.width));
    const place = Math.floor(part * data.count);
    const reach = (4 * data.count) / bounds.width; // a probed commit within four pixels is meant
    const near = probed.filter((each) => Math.abs(each - place) <= reach);
    return near.sort((a, b) => Math.abs(a - place) - Math.abs(b - place))[0] ?? place;
  };
  frame.addEventListener("pointermove", (pointer) => tell(placeOf(pointer)));
  frame.addEventListener("pointerdown", (pointer) => hold(placeOf(pointer)));
  frame.addEventListener("pointerleave", () => tell(held));

  frame.tabIndex = 0;
  frame.setAttribute("role", "slider");
  frame.setAttribute("aria-label", "commit of the range");
  frame.setAttribute("aria-valuemin", 0);
  frame.setAttribute("aria-valuemax", data.count - 1);
  tell(held);
}
