"use strict";
function filter(section) {
  const input = section.querySelector("input[type=search]");
  if (!input) return;
  const rows = [...section.querySelectorAll("tbody tr")];
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    let found = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      found += !row.hidden;
    }
    section.querySelector(".found").textContent = wanted ? found + " of " + rows.length + " rows" : "";
  });
}

// Paper has what is folded on the screen.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((part) => part.setAttribute("open", ""));
});
addEventListener("afterprint", () => folded.forEach((part) => part.removeAttribute("open")));

document.querySelectorAll("main > section").forEach(filter);
