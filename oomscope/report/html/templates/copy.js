"use strict";
// A button on every block of commands that copies it; where the clipboard is denied, the text is selected instead.
for (const block of document.querySelectorAll("pre.commands")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
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
