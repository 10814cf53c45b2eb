"use strict";
(() => {
  const tip = document.getElementById("tip");
  const say = (text) => { tip.textContent = text; tip.classList.toggle("on", Boolean(text)); };

  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // Coordinates of an element in flat modes [extent, stride] of a compact layout, put together again.
  const index = (element, modes) => {
    let found = 0, size = 1;
    for (const [extent, stride] of modes) {
      found += (Math.floor(element / stride) % extent) * size;
      size *= extent;
    }
    return found;
  };

  const owner = (of, row, column) => {
    const band = Math.floor(row / 64), group = band % of.team, pass = Math.floor(band / of.team);
    const element = (row % 64) + 64 * (column % of.mma);
    const thread = index(element, of.threads), value = index(element, of.values);
    const part = Math.floor(column / of.mma);
    const where = of.swapped ? `D(${column}, ${row})` : `D(${row}, ${column})`;
    const whose = of.pingpong ? "the tile's consumer" : `consumer ${group + 1}`;
    const more = (pass ? `, pass ${pass + 1}` : "") + (part ? `, instruction ${part + 1}` : "");
    return `${where} of the tile: ${whose}, warp ${thread >> 5}, lane ${thread & 31}, value ${value}${more}`;
  };

  for (const svg of document.querySelectorAll("svg[data-owners]")) {
    const of = JSON.parse(svg.dataset.owners);
    svg.addEventListener("mousemove", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const row = Math.floor((at.y - of.y) / of.scale), column = Math.floor((at.x - of.x) / of.scale);
      const inside = row >= 0 && column >= 0 && row < of.rows && column < of.columns;
      say(inside ? owner(of, row, column) : "");
    });
    svg.addEventListener("mouseleave", () => say(""));
  }

  document.addEventListener("mouseover", (event) => {
    if (event.target.closest("svg[data-owners]")) return;
    const title = event.target.querySelector && event.target.closest("rect,circle")?.querySelector("title");
    say(title ? title.textContent : "");
  });
  globalThis.cutegemmOwner = owner;
})();
