// The page of a server: made again there when files change, and loaded again here, with what was open.
const OPEN = "open";
const parts = [...document.querySelectorAll("details")];
const kept = JSON.parse(sessionStorage.getItem(OPEN) || "[]");
parts.forEach((part, at) => { if (at in kept) part.open = kept[at]; });
setInterval(async () => {
  try {
    const answer = await fetch("/version", { cache: "no-store" });
    if (!answer.ok || (await answer.text()) === document.documentElement.dataset.version) return;
    sessionStorage.setItem(OPEN, JSON.stringify(parts.map((part) => part.open)));
    location.reload();
  } catch {
    // No answer: the next look tries again.
  }
}, 1000);
