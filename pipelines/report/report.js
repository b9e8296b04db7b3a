"use strict";
for (const section of document.querySelectorAll("main > section")) {
  const rows = [...section.querySelectorAll(".every tbody tr")];
  section.querySelector("input[type=search]")?.addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    const found = rows.filter((row) => !row.hidden).length;
    section.querySelector(".found").textContent = wanted ? found + " of " + rows.length + " rows" : "";
  });
}

// Paper has what is promised, which is folded on the screen.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open]):not(.every)")];
  folded.forEach((part) => part.setAttribute("open", ""));
});
addEventListener("afterprint", () => folded.forEach((part) => part.removeAttribute("open")));
