// The top of the page: theme, the settings drawer, and Quit with its question.
const $ = (selector) => element.querySelector(selector);
const root = document.documentElement;

const setTheme = (dark) => {
  document.body.classList.toggle("dark", dark);
  root.classList.toggle("dark", dark);
};
const kept = localStorage.getItem("headstart-theme");
if (kept && !new URLSearchParams(location.search).has("__theme")) setTheme(kept === "dark");
$(".hs-theme").addEventListener("click", () => {
  const dark = !document.body.classList.contains("dark");
  setTheme(dark);
  localStorage.setItem("headstart-theme", dark ? "dark" : "light");
});

const toggle = $(".hs-settings-toggle");
const setDrawer = (open) => {
  root.classList.toggle("hs-drawer-open", open);
  toggle.setAttribute("aria-expanded", String(open));
  if (open) document.querySelector("#drawer input, #drawer textarea")?.focus({preventScroll: true});
};
toggle.addEventListener("click", () => setDrawer(!root.classList.contains("hs-drawer-open")));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !root.classList.contains("hs-drawer-open")) return;
  if (document.querySelector("#drawer")?.contains(document.activeElement)) toggle.focus();
  setDrawer(false);
});
document.addEventListener("click", (event) => {
  if (event.target.closest?.(".hs-drawer-close")) setDrawer(false), toggle.focus();
});

const dialog = $(".hs-dialog");
$(".hs-quit").addEventListener("click", () => dialog.showModal());
$(".hs-stay").addEventListener("click", () => dialog.close());
$(".hs-leave").addEventListener("click", () => {
  dialog.close();
  trigger("quit");
  $(".hs-gone").hidden = false;
  root.classList.add("hs-ended");
});
