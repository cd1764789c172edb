"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const draw = (theme) => Promise.all(figures.map((figure, index) => {
    const { data, layout } = figure[theme];
    return Plotly.react(`figure-${index}`, data, layout, { displayModeBar: false, responsive: true });
  }));
  const current = () => (dark.matches ? "dark" : "light");
  draw(current()).then(() => document.body.setAttribute("data-drawn", "yes"));
  dark.addEventListener("change", () => draw(current()));
  // Paper is white.
  window.addEventListener("beforeprint", () => draw("light"));
  window.addEventListener("afterprint", () => draw(current()));
})();
