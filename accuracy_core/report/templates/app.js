"use strict";
// Tabs, links to a prompt, theme, copy buttons. The page can be read without any of it.
(function () {
  const root = document.documentElement;
  root.classList.add("js");
  const tabs = Array.from(document.querySelectorAll('[role="tab"]'));
  const panels = Array.from(document.querySelectorAll(".tab"));
  const prompts = Array.from(document.querySelectorAll(".prompt-panel"));
  const links = Array.from(document.querySelectorAll(".sidebar a[data-prompt]"));

  function showTab(name) {
    for (const tab of tabs) {
      const on = tab.getAttribute("aria-controls") === name;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
    }
    for (const panel of panels) panel.classList.toggle("on", panel.id === name);
  }

  function showPrompt(which) {
    for (const panel of prompts) panel.classList.toggle("on", panel.dataset.prompt === which);
    for (const link of links) {
      if (link.dataset.prompt === which) {
        link.setAttribute("aria-current", "true");
        link.scrollIntoView({ block: "nearest" });
      } else link.removeAttribute("aria-current");
    }
    const shown = prompts.find((panel) => panel.dataset.prompt === which);
    if (shown) window.assayCharts.draw(shown);
  }

  function route() {
    const name = decodeURIComponent(location.hash.slice(1));
    const prompt = /^prompt-(\d+)$/.exec(name);
    if (prompt && document.getElementById(name)) {
      showTab("prompt");
      showPrompt(prompt[1]);
    } else {
      showTab(panels.some((panel) => panel.id === name) ? name : "overview");
      if (name === "prompt") showPrompt("all");
    }
    // after the browser has jumped to the anchor itself
    requestAnimationFrame(() => window.scrollTo(0, 0));
  }

  // pushState, not location.hash: jumping to a fragment would take the focus away from the tab or the sidebar.
  function open(hash) {
    if (hash !== location.hash) history.pushState(null, "", hash);
    route();
  }

  // Arrow keys move along the tabs, as in every tab list.
  document.querySelector('[role="tablist"]').addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -tabs.length, End: tabs.length }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = tabs.indexOf(document.activeElement);
    const next = Math.abs(step) === 1 ? (at + step + tabs.length) % tabs.length : step < 0 ? 0 : tabs.length - 1;
    tabs[next].focus();
    open(tabs[next].getAttribute("href"));
  });
  const sidebar = document.querySelector(".sidebar");
  if (sidebar) sidebar.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = links[links.indexOf(document.activeElement) + step];
    if (!next) return;
    next.focus();
    open(next.getAttribute("href"));
  });

  document.getElementById("theme").addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (dark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    window.assayCharts.restyle();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => window.assayCharts.restyle());

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const code = button.parentElement.querySelector("code");
    const done = () => {
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
    const select = () => {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      if (document.execCommand("copy")) done();
    };
    if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, select);
    else select();
  });

  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(link.getAttribute("href"));
    if (link.getAttribute("role") !== "tab" && !link.closest(".sidebar")) {
      const tab = tabs.find((one) => one.getAttribute("aria-selected") === "true");
      if (tab) tab.focus({ preventScroll: true });
    }
  });
  addEventListener("load", () => requestAnimationFrame(() => window.scrollTo(0, 0)));
  addEventListener("hashchange", route);
  addEventListener("popstate", route);
  // Charts have the size that they were drawn at, so they are drawn at the width of the paper.
  const PRINTED = 20;
  addEventListener("beforeprint", () => {
    root.classList.replace("js", "printing");
    for (const panel of prompts.slice(0, PRINTED + 1)) window.assayCharts.draw(panel);
    window.assayCharts.resize();
  });
  addEventListener("afterprint", () => {
    root.classList.replace("printing", "js");
    window.assayCharts.resize();
  });
  addEventListener("DOMContentLoaded", route);
})();
