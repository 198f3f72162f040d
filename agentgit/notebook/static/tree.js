// Draws a tree and sends what is clicked to the kernel. All text arrives escaped from Python.
function render({ model, el }) {
  const make = (tag, name, parent) => {
    const made = document.createElement(tag);
    made.className = `agentgit-${name}`;
    parent.append(made);
    return made;
  };
  const root = make("div", "browser", el);
  const top = make("form", "top", root);
  const title = make("strong", "title", top);
  const typed = make("input", "ref", top);
  typed.placeholder = "main#3, HEAD~1, a name, a tag";
  typed.size = 28;
  typed.setAttribute("aria-label", "Checkpoint");
  const choose = make("button", "choose", top);
  choose.textContent = "Show";
  const update = make("button", "update", top);
  update.type = "button";
  update.textContent = "Update";
  const picture = make("div", "picture", root);
  const note = make("p", "note", root);
  note.setAttribute("role", "status");
  const panel = make("div", "panel", root);
  const buttons = make("div", "buttons", root);

  const send = (action, value) => {
    root.setAttribute("aria-busy", "true");
    model.send({ action, value });
  };
  top.addEventListener("submit", (event) => {
    event.preventDefault();
    if (typed.value.trim()) send("choose", typed.value.trim());
  });
  update.addEventListener("click", () => send("update", ""));
  picture.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    event.preventDefault();
    event.stopPropagation(); // or the notebook follows the link
    send("choose", link.getAttribute("href").slice(1));
  });

  function draw() {
    const state = model.get("state");
    root.removeAttribute("aria-busy");
    title.textContent = state.title;
    picture.innerHTML = state.picture;
    for (const link of picture.querySelectorAll("a"))
      if (link.getAttribute("href") === `#${state.chosen}`) link.setAttribute("aria-current", "true");
    note.textContent = state.note;
    panel.innerHTML = state.panel;
    buttons.replaceChildren();
    for (const { label, action, value } of state.buttons) {
      const button = make("button", "action", buttons);
      button.type = "button";
      button.textContent = label;
      button.addEventListener("click", () => send(action, value));
    }
  }
  model.on("change:state", draw);
  draw();
  return () => model.off("change:state", draw);
}

export default { render };
