"use strict";
// Asks once a second which pieces have changed, and replaces these. Pieces come from this page's own server, where
// all texts of the data are escaped; what is written here are text nodes only.
const EVERY = 1000;
const said = document.getElementById("said");
const pause = document.getElementById("pause");
const results = document.getElementById("results");
const health = document.getElementById("health");
const shown = new Map(); // element -> version that it shows
const busy = new Set();
let first = true;
let away = ""; // since when there is no answer

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(30000) });
  if (!answer.ok) throw new Error(answer.status);
  return answer;
}

async function piece(path) {
  return new DOMParser().parseFromString(await (await ask(path)).text(), "text/html").body;
}

function say(text, away) {
  if (said.textContent !== text) said.textContent = text;
  said.classList.toggle("away", Boolean(away));
}

function clock() {
  return new Date().toISOString().slice(11, 19) + " UTC";
}

// What somebody has typed, chosen, opened or scrolled to stays; so does the focus.
const KEPT = "input, select, details, summary, .scroll, .picture svg";

function replace(element, body) {
  const old = [...element.querySelectorAll(KEPT)];
  const focused = old.indexOf(document.activeElement);
  const pictures = element.querySelector(".pictures");
  element.replaceChildren(...body.childNodes);
  const kept = element.querySelector(".pictures");
  if (pictures && kept) kept.replaceWith(pictures);
  element.querySelectorAll("figure").forEach((figure) => figure.dataset.explained || explainOnce(figure));
  element.querySelectorAll("details").forEach(filter);
  const now = [...element.querySelectorAll(KEPT)];
  if (now.length !== old.length) return;
  now.forEach((one, at) => {
    const before = old[at];
    if (one.tagName !== before.tagName) return;
    if (one.tagName === "DETAILS") one.open = before.open;
    if (one.tagName === "INPUT" && before.value) {
      one.value = before.value;
      one.dispatchEvent(new Event("input"));
    }
    if (one.tagName === "SELECT" && one !== before) choose(one, before);
    if (one.matches(".scroll")) one.scrollTop = before.scrollTop;
  });
  if (focused >= 0) now[focused].focus({ preventScroll: true });
}

function choose(select, before) {
  const name = before.selectedOptions[0]?.textContent;
  const at = [...select.options].findIndex((option) => option.textContent === name);
  if (at <= 0) return;
  select.selectedIndex = at;
  select.dispatchEvent(new Event("change"));
}

function explainOnce(figure) {
  figure.dataset.explained = "yes";
  explain(figure);
}

function section(one) {
  const id = "result-" + one.id;
  let found = document.getElementById(id);
  if (!found) {
    found = document.createElement("section");
    found.id = id;
    found.tabIndex = -1;
  }
  return found;
}

async function update(element, version, path) {
  if (shown.get(element) === version) return false;
  replace(element, await piece(path));
  shown.set(element, version);
  return true;
}

// Pictures and all else that takes longer than numbers: they wait for none of it, and the next look tries again.
async function meanwhile(name, work) {
  if (busy.has(name)) return;
  busy.add(name);
  try {
    await work();
  } catch {
    // There is another look in a second.
  } finally {
    busy.delete(name);
  }
}

async function paint(all) {
  for (const one of all) {
    const holder = section(one).querySelector(".pictures");
    if (!holder) continue;
    while (holder.children.length > one.pictures) holder.lastElementChild.remove();
    while (holder.children.length < one.pictures) {
      const slot = document.createElement("div");
      slot.className = "slot";
      holder.append(slot);
    }
    for (const [at, slot] of [...holder.children].entries()) {
      await update(slot, one.version, "/results/" + one.id + "/pictures/" + at);
    }
  }
}

function contents(state) {
  const list = document.getElementById("contents");
  const notes = document.getElementById("notes");
  list.replaceChildren(...state.results.map((one) => {
    const link = document.createElement("a");
    link.href = "#result-" + one.id;
    link.textContent = one.title;
    const item = document.createElement("li");
    item.append(link, one.running ? " (running)" : " (complete)");
    return item;
  }));
  notes.replaceChildren(...state.notes.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
}

let listed = "";

async function look() {
  const state = await (await ask("/state")).json();
  const text = JSON.stringify([state.results.map((one) => [one.id, one.title, one.running]), state.notes]);
  if (text !== listed) {
    listed = text;
    contents(state);
    const wanted = state.results.map(section);
    [...results.children].filter((old) => !wanted.includes(old)).forEach((old) => old.remove());
    wanted.forEach((one, at) => results.children[at] === one || results.insertBefore(one, results.children[at]));
  }
  const changed = [];
  await Promise.all(state.results.map(async (one) => {
    const element = section(one);
    if (await update(element, one.version, "/results/" + one.id)) changed.push(one.title);
  }));
  meanwhile("pictures", () => paint(state.results));
  meanwhile("cost", () => update(document.getElementById("cost"), state.cost, "/cost"));
  if (health) meanwhile("health", async () => replace(health, await piece(health.dataset.from)));
  if (!state.results.length) say("No results yet. They appear here when a command has written them.");
  else if (changed.length && !first) say("New at " + clock() + ": " + changed.join("; ") + ".");
  else if (first || said.classList.contains("away")) say("Up to date; looks once a second.");
  first = !state.results.length && first;
}

async function follow() {
  if (pause.getAttribute("aria-pressed") === "false") {
    try {
      await look();
      away = "";
    } catch {
      away = away || clock();
      say("No answer from the server since " + away + ". What is shown is older; trying again.", true);
      await new Promise((later) => setTimeout(later, EVERY));
    }
  }
  setTimeout(follow, EVERY);
}

pause.addEventListener("click", () => {
  const paused = pause.getAttribute("aria-pressed") === "false";
  pause.setAttribute("aria-pressed", String(paused));
  say(paused ? "Paused at " + clock() + "." : "Going on.");
});

follow();
