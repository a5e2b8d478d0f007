// Nodes made by hand. Text goes in by textContent alone.
const make = (tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};

const button = (words, className, act) => {
  const made = make("button", className, words);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
};
