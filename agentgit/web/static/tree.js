// The tree of a session: arrow keys, expanding in place, actions, choosing two points, updates. Without this script
// its links and forms do the same.
"use strict";

const ITEM = "li.tree-row";

const tree = () => document.getElementById("tree");
const items = () => [...tree().querySelectorAll(ITEM)];
const level = (item) => Number(item.dataset.level);

// -- roles, which promise the keys below

function upgrade(section) {
  const list = section.querySelector("[data-rows]");
  list.setAttribute("role", "tree");
  list.setAttribute("aria-multiselectable", "true");
  for (const item of list.querySelectorAll(ITEM)) {
    item.setAttribute("role", "treeitem");
    item.setAttribute("aria-level", item.dataset.level);
    if (item.dataset.open) item.setAttribute("aria-expanded", item.dataset.open);
    item.tabIndex = -1;
    for (const part of item.querySelectorAll("a, input, button")) part.tabIndex = -1;
    const dots = item.querySelector(".dots");
    if (dots) dots.hidden = false;
  }
  const start = list.querySelector("[aria-current]") ?? list.querySelector("#head") ?? list.querySelector(ITEM);
  if (start) start.tabIndex = 0;
  showPicked();
  showTimes();
  return start;
}

function center(item) {
  const list = item?.closest("[data-rows]");
  if (list) list.scrollTop = item.offsetTop - list.offsetTop - list.clientHeight / 2 + item.offsetHeight / 2;
}

function focusOn(item) {
  if (!item) return;
  for (const other of items()) other.tabIndex = -1;
  item.tabIndex = 0;
  item.focus({ preventScroll: true });
  item.scrollIntoView({ block: "nearest" });
}

// -- the keyboard, as the ARIA pattern of a tree view describes it

function parentOf(item) {
  let other = item.previousElementSibling;
  while (other && level(other) >= level(item)) other = other.previousElementSibling;
  return other;
}

function step(item, key) {
  const all = items();
  const at = all.indexOf(item);
  if (key === "ArrowDown") return all[at + 1];
  if (key === "ArrowUp") return all[at - 1];
  if (key === "Home") return all[0];
  if (key === "End") return all[all.length - 1];
  if (key === "ArrowLeft") return parentOf(item);
  const next = all[at + 1];
  return next && level(next) > level(item) ? next : undefined;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const menu = event.target.closest("#tree-menu");
  if (menu) return menuKey(event, menu);
  const item = event.target.closest(ITEM);
  if (!item || event.target !== item) return;
  const toggle = item.querySelector(".toggle");
  const isOpen = item.dataset.open === "true";
  if (event.key === "ContextMenu" || (event.key === "F10" && event.shiftKey) || event.key === "m") openMenu(item);
  else if (event.key === " ") pick(item);
  else if (event.key === "Enter") (item.querySelector(".open") ?? item.querySelector("a"))?.click();
  else if (toggle && ((event.key === "ArrowRight" && !isOpen) || (event.key === "ArrowLeft" && isOpen))) toggle.click();
  else if (/^(Arrow(Up|Down|Left|Right)|Home|End)$/.test(event.key)) focusOn(step(item, event.key));
  else return;
  event.preventDefault();
});

document.addEventListener("focusin", (event) => {
  const item = event.target.closest?.(ITEM);
  if (!item) return;
  for (const other of items()) other.tabIndex = other === item ? 0 : -1;
});

// -- expanding, showing more and filtering in place

let loads = 0;

async function load(url, keepFocus) {
  const number = ++loads;
  const section = tree();
  const list = section.querySelector("[data-rows]");
  const focused = document.activeElement?.closest?.(ITEM);
  const place = { top: list.scrollTop, id: focused?.dataset.id, at: focused ? items().indexOf(focused) : -1 };
  const answer = await fetch(section.dataset.tree + url.search, { headers: { accept: "text/html" } });
  if (!answer.ok || answer.redirected) return false;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("tree");
  if (!fresh) return false;
  if (number !== loads) return true; // a newer tree was requested in the meantime
  const picked = picks().map((box) => box.value);
  // Links back to this page, not to the page that the rows came from.
  for (const link of fresh.querySelectorAll("[data-tree-link]")) {
    link.href = location.pathname + new URL(link.href).search + "#tree";
  }
  const filter = fresh.querySelector(".tree-filter");
  if (filter) filter.action = location.pathname;
  fresh.className = section.className;
  section.replaceWith(document.adoptNode(fresh));
  for (const box of fresh.querySelectorAll(".pick")) box.checked = picked.includes(box.value);
  upgrade(fresh);
  fresh.querySelector("[data-rows]").scrollTop = place.top;
  if (keepFocus && place.at >= 0) {
    const same = place.id && fresh.querySelector(`${ITEM}[data-id="${place.id}"]`);
    focusOn(same || items()[Math.min(place.at, items().length - 1)]);
  }
  return true;
}

async function go(url) {
  history.replaceState(null, "", url.pathname + url.search);
  if (!(await load(url, true))) location.href = url;
}

document.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  const link = event.target.closest?.("[data-tree-link]");
  if (link) {
    event.preventDefault();
    const item = link.closest(ITEM);
    if (item) focusOn(item);
    go(new URL(link.href));
    return;
  }
  if (event.target.closest?.("[data-jump]")) {
    event.preventDefault();
    const head = document.getElementById("head");
    center(head);
    focusOn(head);
    return;
  }
  const dots = event.target.closest?.(".dots");
  if (dots) openMenu(dots.closest(ITEM));
});

document.addEventListener("submit", (event) => {
  if (event.target.matches(".tree-filter")) {
    event.preventDefault();
    go(new URL("?" + new URLSearchParams(new FormData(event.target)), location.href));
  }
});

// -- choosing two points to compare

const picks = () => [...document.querySelectorAll("#tree .pick:checked")];
let order = [];
let isChoosing = false; // then every row shows its box

function pick(item) {
  const box = item?.querySelector(".pick");
  if (!box) return;
  box.checked = !box.checked;
  picked(box);
}

function picked(box) {
  order = order.filter((value) => value !== box.value);
  if (box.checked) order.push(box.value);
  while (order.length > 2) {
    const oldest = order.shift();
    for (const other of picks()) if (other.value === oldest) other.checked = false;
  }
  showPicked();
}

function showPicked() {
  const section = tree();
  const chosen = picks();
  for (const item of items()) {
    const box = item.querySelector(".pick");
    if (box) item.setAttribute("aria-selected", String(box.checked));
  }
  section.classList.toggle("picking", isChoosing || chosen.length > 0);
  const names = chosen.map((box) => box.closest(ITEM).dataset.ref);
  section.querySelector("[data-picked]").textContent =
    names.length === 2 ? names.join(" and ") : names.length ? `${names[0]} and …` : "Choose two rows";
}

document.addEventListener("submit", (event) => {
  if (event.target.id !== "tree-compare" || picks().length === 2) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  isChoosing = !isChoosing;
  showPicked();
}, true);

document.addEventListener("change", (event) => {
  if (event.target.matches("#tree .pick")) picked(event.target);
});

// -- the actions of a row

let owner = null;

function openMenu(item) {
  const menu = document.getElementById("tree-menu");
  if (!item?.querySelector(".dots") || !menu.showPopover) return; // a rerun has no actions
  owner = item;
  for (const link of menu.querySelectorAll("[data-href]")) link.href = link.dataset.href.replace("{id}", item.dataset.id);
  menu.setAttribute("aria-label", `Actions at ${item.dataset.ref}`);
  menu.querySelector("[data-pick]").textContent = item.querySelector(".pick").checked ? "Do not compare" : "Choose to compare";
  show(menu);
  menu.querySelector("[role=menuitem]").focus();
}

function show(popover) {
  popover.showPopover();
  const dots = owner.querySelector(".dots").getBoundingClientRect();
  popover.style.left = `${Math.max(8, Math.min(dots.left, innerWidth - popover.offsetWidth - 8))}px`;
  popover.style.top = `${Math.max(8, Math.min(dots.bottom + 2, innerHeight - popover.offsetHeight - 8))}px`;
}

// One form serves all rows and the three actions that need only a name.

function openForm(entry) {
  const dialog = document.getElementById("tree-form");
  const form = dialog.querySelector("form");
  const verb = entry.textContent.replace("…", "");
  document.getElementById("tree-menu").hidePopover();
  focusOn(owner); // the browser returns to it when the dialog closes
  form.action = entry.dataset.action;
  form.elements.ref.value = owner.dataset.id;
  form.elements.form_id.value = crypto.getRandomValues(new Uint32Array(4)).join("-"); // sent twice, it makes one branch
  form.elements.name.value = verb === "Rename" ? owner.dataset.name ?? "" : "";
  form.elements.name.required = verb === "Tag";
  form.elements.name.placeholder = entry.dataset.label;
  form.elements.name.setAttribute("aria-label", entry.dataset.label);
  form.querySelector("button").textContent = verb;
  document.getElementById("tree-form-title").textContent = `${verb} ${owner.dataset.ref}`;
  show(dialog);
  form.elements.name.select();
}

function menuKey(event, menu) {
  const entries = [...menu.querySelectorAll("[role=menuitem]")];
  const at = entries.indexOf(document.activeElement);
  if (event.key === "ArrowDown") entries[(at + 1) % entries.length].focus();
  else if (event.key === "ArrowUp") entries[(at + entries.length - 1) % entries.length].focus();
  else if (event.key === "Escape" || event.key === "Tab") { menu.hidePopover(); focusOn(owner); }
  else return;
  event.preventDefault();
}

document.addEventListener("click", (event) => {
  const entry = event.target.closest?.("#tree-menu [data-action]");
  if (entry) return openForm(entry);
  if (!event.target.closest?.("[data-pick]")) return;
  document.getElementById("tree-menu").hidePopover();
  pick(owner);
  focusOn(owner);
});

// -- updates while an agent runs

document.addEventListener("agentgit:changed", () => {
  if (tree() && !tree().querySelector(":popover-open")) {
    load(new URL(location.href), Boolean(document.activeElement?.closest?.(ITEM)));
  }
});

if (tree()) center(upgrade(tree()));
