// Live updates and keyboard shortcuts. Every page works without this script.
"use strict";

const told = document.getElementById("told");
document.documentElement.classList.add("scripted");

// -- live updates: an event reloads the parts of the page that can change

const REST = 2_000; // milliseconds between two updates

let waiting = false;
let news = ""; // the kind of the newest event
let looked = 0;
const fetched = new WeakMap(); // the last HTML of each part, as the server sent it

// What a person has opened or is filling in stays as it is, unless the page is now about something else.

const aims = (part) => [...part.querySelectorAll("input[type=hidden]")].map((field) => `${field.name}=${field.value}`).join("\n");

function isMorphed(old, fresh) {
  if (!(old instanceof Element)) return true;
  if (old.matches(".slot:not(:empty)")) return false;
  if (!old.matches("form:focus-within, details.act[open]")) return true;
  if (aims(old) === aims(fresh)) return false;
  if (old.matches("details")) {
    if (old.contains(document.activeElement)) old.querySelector("summary").focus();
    old.open = false;
  }
  return true;
}

Object.assign(Idiomorph.defaults, { ignoreActiveValue: true });
Object.assign(Idiomorph.defaults.callbacks, {
  beforeNodeMorphed: isMorphed,
  beforeAttributeUpdated: (name, node) => !((name === "open" && node.matches("details")) || (name === "hidden" && node.matches(".turn"))),
});

async function refresh() {
  const kind = news;
  looked = Date.now();
  waiting = false;
  news = "";
  if (kind) document.dispatchEvent(new CustomEvent("agentgit:changed", { detail: kind }));
  const url = location.href;
  const answer = await fetch(url, { headers: { accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (location.href !== url) return; // a person has opened something else in the meantime
  let changed = false;
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(part.id);
    if (!fresh || fresh.innerHTML === fetched.get(part)) continue;
    fetched.set(part, fresh.innerHTML);
    Idiomorph.morph(part, fresh.innerHTML, { morphStyle: "innerHTML" });
    htmx.process(part);
    changed = true;
  }
  if (changed) prepare();
  if (told && kind) told.textContent = `Updated: ${kind}`;
}

const feed = document.body.dataset.feed;
if (feed && window.EventSource) {
  const source = new EventSource(feed);
  const heard = (event) => {
    if (event.type !== "open") news = event.type;
    if (waiting) return;
    waiting = true;
    setTimeout(refresh, Math.max(300, looked + REST - Date.now()));
  };
  for (const kind of [
    "session.created", "session.imported", "session.renamed", "branch.renamed", "checkpoint.annotated", "session.shared", "turn.done", "turn.waiting", "turn.failed",
    "turn.abandoned", "checkpoint.created", "checkpoint.deleted", "call.done", "call.failed", "call.reversed",
    "call.resolved", "rollback.begun", "rollback.done", "rollback.incomplete", "switch.done", "switch.incomplete",
    "fork.done", "merge.done", "cherry_pick.done", "tag.created", "tag.deleted",
  ]) source.addEventListener(kind, heard);
  source.addEventListener("open", heard); // what happened before the feed was open is on no feed
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
  if (event.key === "Escape" && document.querySelector(".slot:not(:empty)")) return closePanels(null);
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

// -- the session page: panels in place, and a filter

function closePanels(except) {
  for (const slot of document.querySelectorAll(".slot")) if (slot !== except) slot.replaceChildren();
}

addEventListener("htmx:beforeSwap", (event) => {
  const target = event.detail.target;
  if (event.detail.xhr.status >= 400) event.detail.shouldSwap = false; // see htmx:responseError
  else closePanels(target.closest(".slot"));
});

// An error has a page of its own, which says what to do.
addEventListener("htmx:responseError", (event) => { location.href = event.detail.pathInfo.finalRequestPath; });

addEventListener("htmx:afterSettle", (event) => {
  const title = event.detail.target.matches(".slot") && event.detail.target.querySelector("#panel-title");
  if (title && !event.detail.target.contains(document.activeElement)) title.focus();
  prepare();
});

addEventListener("click", (event) => {
  const close = event.target.closest(".slot [data-close]");
  if (!close) return;
  event.preventDefault();
  closePanels(null);
});

// A form that is sent twice, by a double click, acts once.

let sent = new WeakSet(); // not an attribute, which a live update would remove

addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post" || event.defaultPrevented) return;
  if (sent.has(form)) event.preventDefault();
  sent.add(form);
});

addEventListener("pageshow", (event) => { if (event.persisted) sent = new WeakSet(); }); // by "back"

// A row of the tree shows its conversation in place; the tree stays as it is.

function markCurrent() {
  const at = new URL(location.href).searchParams.get("at");
  for (const row of document.querySelectorAll("#tree li[data-id]")) {
    if (row.dataset.id === at) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
  const title = document.getElementById("talk-title");
  if (told && title) told.textContent = `Showing: ${title.textContent}`;
}

addEventListener("htmx:pushedIntoHistory", markCurrent);

addEventListener("click", (event) => {
  const link = event.target.closest?.("#tree a.open, #tree-menu a[href]");
  const talk = document.getElementById("talk");
  if (!link || !talk || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  const url = new URL(link.href);
  const isPanel = ["rollback", "edit"].some((name) => url.pathname === `${location.pathname}/${name}`);
  if (!isPanel && url.pathname !== location.pathname) return;
  event.preventDefault();
  document.getElementById("tree-menu")?.hidePopover?.();
  const target = isPanel ? "#slot-top" : "#talk";
  const how = isPanel ? { select: "#panel", swap: "innerHTML" } : { select: "#talk > *", swap: "morph:innerHTML" };
  if (!isPanel) history.pushState({ htmx: true }, "", url.pathname + url.search);
  htmx.ajax("GET", url.href, { target, ...how }).then(() => {
    if (!isPanel) markCurrent();
    document.getElementById("talk").scrollIntoView({ block: "start" });
  });
});

function filter() {
  const field = document.querySelector("[data-filter]");
  if (!field) return;
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const turns = [...document.querySelectorAll(".turn")];
  for (const turn of turns) turn.hidden = !words.every((word) => turn.textContent.toLowerCase().includes(word));
  const shown = turns.filter((turn) => !turn.hidden).length;
  const text = words.length ? `${shown} of ${turns.length} turns` : "";
  const status = document.getElementById("filtered");
  if (status.textContent !== text) status.textContent = text;
}

addEventListener("input", (event) => { if (event.target.matches("[data-filter]")) filter(); });

// -- times: how long ago, with the exact local time as the title

function ago(seconds) {
  for (const [size, unit] of [[86_400, "day"], [3_600, "hour"], [60, "min"]]) {
    const number = Math.floor(seconds / size);
    if (number >= 1) return `${number} ${unit}${number > 1 && unit !== "min" ? "s" : ""} ago`;
  }
  return "just now";
}

function showTimes() {
  for (const time of document.querySelectorAll("time")) {
    const moment = new Date(time.dateTime);
    time.title = moment.toLocaleString();
    const row = time.closest(".tree-row")?.querySelector("a.what"); // it covers the row
    if (row) row.title = time.title;
    const text = ago((Date.now() - moment) / 1_000);
    if (time.dataset.ago !== undefined && time.textContent !== text) time.textContent = text;
  }
}

document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" }); // on a phone

function prepare() {
  filter();
  showTimes();
}

prepare();
setInterval(showTimes, 30_000);
