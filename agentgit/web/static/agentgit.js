// Live updates and keyboard shortcuts. Every page works without this script.
"use strict";

const told = document.getElementById("told");

// -- live updates: an event reloads the parts of the page that can change

const REST = 2_000; // milliseconds between two updates

let waiting = false;
let looked = 0;

async function refresh(kind) {
  looked = Date.now();
  waiting = false;
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  let changed = false;
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(part.id);
    const busy = part.contains(document.activeElement) || part.querySelector("details[open]");
    if (fresh && !busy && fresh.innerHTML !== part.innerHTML) {
      part.replaceWith(document.adoptNode(fresh));
      changed = true;
    }
  }
  if (changed && told) told.textContent = `Updated: ${kind}`;
}

const feed = document.body.dataset.feed;
if (feed && window.EventSource) {
  const source = new EventSource(feed);
  const heard = (event) => {
    if (waiting) return;
    waiting = true;
    setTimeout(refresh, Math.max(300, looked + REST - Date.now()), event.type);
  };
  for (const kind of [
    "session.created", "session.imported", "session.shared", "turn.done", "turn.waiting", "turn.failed",
    "turn.abandoned", "checkpoint.created", "checkpoint.deleted", "call.done", "call.failed", "call.reversed",
    "call.resolved", "rollback.begun", "rollback.done", "rollback.incomplete", "switch.done", "switch.incomplete",
    "fork.done", "merge.done", "cherry_pick.done", "tag.created", "tag.deleted",
  ]) source.addEventListener(kind, heard);
  addEventListener("pagehide", () => source.close());
}

// -- keyboard shortcuts

const root = new URL(document.querySelector("a.brand").href).pathname.replace(/\/$/, "");
let before = "";

function move(step) {
  const links = [...document.querySelectorAll("[data-row]")].map((row) => row.querySelector("a")).filter(Boolean);
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  const next = links[Math.min(links.length - 1, Math.max(0, at + step))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function up() {
  const trail = document.querySelectorAll(".trail a");
  if (trail.length) trail[trail.length - 1].click();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.matches("input:not([type=checkbox]):not([type=radio]), textarea, select")) return;
  const search = document.querySelector("[data-search]");
  const key = before + event.key;
  before = "";
  if (key === "j") move(1);
  else if (key === "k") move(-1);
  else if (key === "/" && search) { event.preventDefault(); search.focus(); search.select(); }
  else if (key === "u") up();
  else if (key === "?") location.href = `${root}/help`;
  else if (key === "gs") location.href = `${root}/sessions`;
  else if (key === "ga") location.href = `${root}/audit`;
  else if (key === "g") before = "g";
});

// -- times are shown in UTC; the title of each shows the local time

for (const time of document.querySelectorAll("time")) {
  time.title = new Date(time.dateTime).toLocaleString();
}
