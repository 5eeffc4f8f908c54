// Draws the figures of a calibration in the colours of the page.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const draw = () => {
    const [text, line, fail] = ["--text", "--line", "--fail"].map(colour);
    const axis = (title, log) => ({ title: { text: title }, type: log ? "log" : undefined, gridcolor: line, zeroline: false, automargin: true });
    for (const [id, figure] of Object.entries(figures)) {
      const lines = figure.lines || [];
      Plotly.react(id, figure.traces, {
        height: 340, margin: { l: 60, r: 16, t: 12, b: 80 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { color: text, size: 12 }, barmode: "group", legend: { orientation: "h", y: -0.25 }, showlegend: figure.traces.length > 1,
        xaxis: { ...axis(figure.x, false), type: undefined }, yaxis: { ...axis(figure.y, figure.log), type: figure.log ? "log" : undefined },
        shapes: lines.map(({ y }) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: fail, width: 1, dash: "dash" } })),
        annotations: lines.map(({ y, text: label }) => ({ xref: "paper", x: 1, xanchor: "right", yanchor: "bottom", y: figure.log ? Math.log10(y) : y, text: label, showarrow: false, font: { color: fail, size: 11 } })),
      }, { displayModeBar: false, responsive: true });
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
