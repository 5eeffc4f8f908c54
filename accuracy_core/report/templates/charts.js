"use strict";
// Charts of a prompt, drawn when the prompt is opened. Data: columns in JSON blocks of the page.
window.assayCharts = (function () {
  const drawn = new Set();

  // plotly.js is parsed when the first chart is needed: a page of text must not wait for it.
  function plotly() {
    if (!window.Plotly) {
      const script = document.createElement("script");
      script.textContent = document.getElementById("plotly-source").textContent;
      document.head.append(script);
    }
    return window.Plotly;
  }

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = () => ({
    text: css("--text"), muted: css("--muted"), line: css("--line"), expected: css("--expected"),
    target: css("--target"), mark: css("--mark"), fail: css("--fail"), accent: css("--accent"), pass: css("--pass"),
    suspect: css("--suspect"), surface: css("--surface"), none: css("--none"), good: css("--heat-good"), soft: css("--heat-soft"), worst: css("--heat-worst"),
  });

  // Token text comes from a model: plotly reads a few tags in hover texts, so they are disarmed here.
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")
    .replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣");

  function hover(data, batch) {
    return batch.x.map((token) => `token ${token}` + (data.tokens[token] === undefined ? "" : `  “${safe(data.tokens[token])}”`));
  }

  function line(data, batch, values, name, color, more) {
    const suffix = data.batches.length > 1 ? ` b${batch.batch}` : "";
    return Object.assign({
      type: "scatter", mode: batch.x.length > 80 ? "lines" : "lines+markers", x: batch.x, y: values, name: name + suffix,
      text: hover(data, batch), hovertemplate: "%{text}<br>" + name + " %{y:.4g}<extra></extra>",
      line: { color: color, width: 1.8 }, marker: { size: 5, color: color },
    }, more || {});
  }

  // The expected line lies under the actual one and usually coincides with it: it is drawn wide and pale.
  const WIDE = (c) => ({ line: { color: c.expected, width: 5 }, mode: "lines", opacity: 0.55 });

  const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];

  const each = (data, make) => data.batches.flatMap((batch) => make(batch));

  function level(value, color, label) {
    if (value === undefined || value === null) return [];
    return [{ kind: "level", value, color, label }];
  }

  // name -> traces, axis settings, horizontal lines
  const KINDS = {
    errors: (d, c) => {
      const colors = [c.accent, c.pass, c.suspect, c.none];
      const keys = Object.keys(d.batches[0].errors);
      return {
        traces: each(d, (b) => keys.map((key, i) => line(d, b, b.errors[key], "top " + key, colors[i % 4]))),
        levels: keys.flatMap((key, i) => level(d.limits.rtol[key], colors[i % 4], key === "all" ? "all" : "top " + key)),
        y: { rangemode: "tozero", tickformat: "~g" }, divergences: true,
      };
    },
    ratios: (d, c) => ({
      traces: each(d, (b) => [line(d, b, b.l2, "L2 ratio", c.accent), line(d, b, b.linf, "L∞ ratio", c.suspect)]),
      levels: [...level(d.limits.l2_guard, c.fail, "L2 guard"), ...level(d.limits.linf_guard, c.fail, "L∞ guard")],
      y: { type: "log", tickvals: STEPS, ticktext: STEPS.map((v) => v + "×") }, divergences: true,
    }),
    gap: (d, c) => ({
      traces: each(d, (b) => [
        line(d, b, b.gap_expected, "expected", c.expected, WIDE(c)), line(d, b, b.gap_target, "actual", c.target),
        line(d, b, b.ulp, "ULP", c.none, { mode: "lines", line: { color: c.none, width: 1.5, dash: "dot" } }),
      ]),
      levels: [], y: { type: "log", dtick: 1 }, divergences: true,
    }),
    bc: (d, c) => ({
      traces: each(d, (b) => [line(d, b, b.bc, "BC", c.accent)]), levels: level(d.limits.bc, c.fail, "threshold"),
      y: { range: [null, 1.005] }, empty: "BC is not measured per token: too few errors in a row",
    }),
    ids: (d, c) => ({
      traces: each(d, (b) => [
        line(d, b, b.expected_id, "expected", c.expected, { ...WIDE(c), hovertemplate: "%{text}<br>expected id %{y}<extra></extra>" }),
        line(d, b, b.target_id, "actual", c.target, { line: { color: c.target, width: 1.8 }, hovertemplate: "%{text}<br>actual id %{y}<extra></extra>" }),
      ]),
      levels: [], y: { tickformat: "d", rangemode: "tozero" }, divergences: true,
    }),
    kl: (d, c) => ({
      traces: each(d, (b) => [line(d, b, b.kl, "KL", c.accent)]), levels: [], y: { rangemode: "tozero", tickformat: "~g" }, divergences: true,
    }),
    top2: (d, c) => ({
      traces: each(d, (b) => [
        line(d, b, b.expected_top1, "expected top 1", c.expected, WIDE(c)), line(d, b, b.expected_top2, "expected top 2", c.expected, { line: { color: c.expected, width: 4, dash: "dash" }, opacity: 0.55 }),
        line(d, b, b.target_top1, "actual top 1", c.target), line(d, b, b.target_top2, "actual top 2", c.target, { line: { color: c.target, width: 1.4, dash: "dash" } }),
      ]),
      levels: [], y: {}, divergences: true,
    }),
  };

  function layout(data, spec, c) {
    const shapes = [];
    const annotations = [];
    for (const item of spec.levels) {
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: item.value, y1: item.value, line: { color: item.color, width: 1.2, dash: "dash" } });
      annotations.push({
        xref: "paper", x: 1.005, xanchor: "left", yanchor: "middle", showarrow: false, text: `${item.label} ${item.value}`,
        y: spec.y.type === "log" ? Math.log10(item.value) : item.value, font: { size: 10, color: item.color },
      });
    }
    if (spec.divergences) for (const batch of data.batches) for (const index of batch.diverged)
      shapes.push({ type: "line", yref: "paper", y0: 0, y1: 1, x0: batch.x[index], x1: batch.x[index], line: { color: c.mark, width: 1.6 } });
    const axis = { gridcolor: c.line, zerolinecolor: c.line, linecolor: c.line, tickfont: { color: c.muted, size: 11 }, automargin: true };
    return {
      margin: { l: 46, r: 84, t: 8, b: 34 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
      font: { family: "system-ui, sans-serif", size: 12, color: c.text }, shapes, annotations, dragmode: "zoom",
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 }, bgcolor: "rgba(0,0,0,0)" },
      xaxis: Object.assign({ title: { text: "generated token (0-based)", font: { size: 11, color: c.muted } }, tickformat: "d", range: [-0.5, Math.max(0, ...data.batches.map((b) => Math.max(...b.x))) + 0.5] }, axis),
      yaxis: Object.assign({}, axis, spec.y), hoverlabel: { font: { family: "ui-monospace, monospace", size: 12 } },
    };
  }

  // An empty frame for charts that do not run over generated tokens.
  function frame(c, axes) {
    const shape = layout({ batches: [] }, { levels: [], y: axes.y }, c);
    Object.assign(shape.xaxis, { title: { text: axes.x, font: { size: 11, color: c.muted } } });
    delete shape.xaxis.range;
    delete shape.xaxis.tickformat;
    shape.margin.r = 16;
    return shape;
  }

  const plot = (element, traces, shape) => plotly().react(element, traces, shape, { displaylogo: false, responsive: true, displayModeBar: "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] });

  const measured = (traces) => traces.some((trace) => trace.y.some((value) => value !== null));

  function chart(element, data) {
    const c = palette();
    const spec = KINDS[element.dataset.chart](data, c);
    if (!measured(spec.traces)) {
      element.textContent = spec.empty || "not measured";
      element.className = "chart-empty muted";
      element.parentElement.classList.add("unmeasured");
      return;
    }
    plot(element, spec.traces, layout(data, spec, c));
  }

  // All prompts at a glance: log10 of the L2 ratio, prompt by token.
  function heat(element) {
    const sources = Array.from(document.querySelectorAll('script[id^="data-"]'));
    const c = palette();
    const rows = sources.map((source) => ({ id: source.id.slice(5), data: JSON.parse(source.textContent) })).filter((row) => row.data.batches.length);
    const width = Math.max(0, ...rows.map((row) => Math.max(...row.data.batches[0].x) + 1));
    const cells = rows.map((row) => {
      const line = Array(width).fill(null);
      row.data.batches[0].x.forEach((token, i) => { const v = row.data.batches[0].l2[i]; line[token] = v === null ? null : Math.log10(Math.max(v, 0.01)); });
      return line;
    });
    if (!cells.some((line) => line.some((v) => v !== null))) { element.textContent = "no ratio was measured"; element.className = "muted"; return; }
    const guard = (rows[0].data.limits.l2_guard || 3);
    const top = Math.max(Math.log10(guard) * 2, ...cells.flat().filter((v) => v !== null));
    const share = (v) => Math.min(1, Math.max(0, (Math.log10(v) + 0.5) / (top + 0.5)));
    const trace = {
      type: "heatmap", z: cells, x: Array.from({ length: width }, (_, i) => i), y: rows.map((row) => "Prompt " + row.id), zmin: -0.5, zmax: top, xgap: 1, ygap: 1, hoverongaps: false,
      text: rows.map((row) => Array.from({ length: width }, (_, i) => safe(row.data.tokens[i] ?? ""))), customdata: cells.map((line) => line.map((v) => (v === null ? null : 10 ** v))),
      hovertemplate: "%{y}, token %{x}  “%{text}”<br>L2 ratio %{customdata:.3g}×<extra></extra>",
      colorscale: [[0, c.good], [share(1), c.good], [share(1.5), c.soft], [share(guard), c.suspect], [Math.min(1, share(guard) + 0.001), c.fail], [1, c.worst]],
      colorbar: { thickness: 10, outlinewidth: 0, tickvals: STEPS.map(Math.log10), ticktext: STEPS.map((v) => v + "×"), tickfont: { size: 11, color: c.muted } },
    };
    const spec = { levels: [], y: { autorange: "reversed", type: "category" } };
    const shape = layout({ batches: [] }, spec, c);
    shape.margin.l = 80;
    shape.xaxis.range = [-0.5, width - 0.5];
    shape.yaxis.showgrid = shape.xaxis.showgrid = false;
    plotly().react(element, [trace], shape, { displaylogo: false, responsive: true, displayModeBar: false });
    if (element.removeAllListeners) element.removeAllListeners("plotly_click");
    element.on("plotly_click", (event) => { location.hash = "#" + event.points[0].y.toLowerCase().replace(" ", "-"); });
  }

  const dataOf = (id) => JSON.parse(document.getElementById("data-" + id).textContent);

  // Other scripts add what they draw: a selector, and a function that draws one such element (again, after a change of
  // colours).
  const drawers = [];
  const register = (selector, make) => drawers.push([selector, make]);

  function draw(panel) {
    for (const [selector, make] of drawers) for (const element of panel.querySelectorAll(selector)) if (!drawn.has(element)) { drawn.add(element); make(element); }
    for (const element of panel.querySelectorAll("[data-heat]")) if (!drawn.has(element)) { drawn.add(element); heat(element); }
    for (const box of panel.querySelectorAll("[data-charts]")) {
      if (drawn.has(box)) continue;
      drawn.add(box);
      const data = dataOf(box.dataset.charts);
      for (const element of box.querySelectorAll("[data-chart]")) chart(element, data);
    }
  }

  function restyle() {
    for (const box of drawn) {
      const own = drawers.find(([selector]) => box.matches(selector));
      if (own) { own[1](box); continue; }
      if (box.dataset.heat !== undefined) { heat(box); continue; }
      const data = dataOf(box.dataset.charts);
      for (const element of box.querySelectorAll("[data-chart]")) chart(element, data);
    }
  }

  // The table of all rows, built when it is unfolded. textContent only: cells may hold token text.
  function rowsTable(data) {
    const table = document.createElement("table");
    table.className = "grid";
    const keys = Object.keys(data.batches[0].errors);
    const heads = ["token", "text", "reference", "expected", "actual", "L2 ratio", "L∞ ratio", "BC", "KL", ...keys.map((key) => "top " + key)];
    const add = (row, kind, text) => { const cell = document.createElement(kind); cell.textContent = text; if (kind === "td") cell.className = "right"; row.append(cell); };
    const head = table.createTHead().insertRow();
    for (const text of heads) add(head, "th", text);
    const body = table.createTBody();
    const show = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)));
    for (const b of data.batches) b.x.forEach((token, i) => {
      const row = body.insertRow();
      if (b.bad.includes(i)) row.className = "bad";
      const cells = [token, JSON.stringify(data.tokens[token] ?? ""), b.reference_id[i], b.expected_id[i], b.target_id[i], show(b.l2[i]), show(b.linf[i]), show(b.bc[i]), show(b.kl[i]), ...keys.map((key) => show(b.errors[key][i]))];
      for (const text of cells) add(row, "td", text);
    });
    return table;
  }

  document.addEventListener("toggle", (event) => {
    const box = event.target.querySelector && event.target.querySelector("[data-rows]");
    if (box && event.target.open && !box.firstChild) box.append(rowsTable(dataOf(box.dataset.rows)));
  }, true);

  function resize() {
    for (const plot of document.querySelectorAll(".js-plotly-plot")) if (plot.offsetParent) window.Plotly.Plots.resize(plot);
  }

  const times = { tickvals: STEPS, ticktext: STEPS.map((v) => v + "×") };
  return { draw, restyle, resize, register, frame, plot, palette, safe, times };
})();
