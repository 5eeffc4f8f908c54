"use strict";
// Module tensors of a prompt: curves in order of execution, and a table that can be sorted. Data: columns in JSON blocks.
(function () {
  const charts = window.assayCharts;
  const dataOf = (id) => JSON.parse(document.getElementById("tensors-" + id).textContent);
  const PHASES = ["prefill", "decode"];
  const short = (module) => module.replace(/^model\./, "");
  const rank = (phase) => PHASES.indexOf(phase);

  function points(data, phase, pick, value) {
    const p = data.phases[phase];
    return pick.map((i) => p[value][i] || null); // exactly equal: no place on a logarithmic axis
  }

  function trace(data, phase, xs, pick, value, name, color, more) {
    const p = data.phases[phase];
    return Object.assign({
      type: "scatter", mode: "lines+markers", x: xs, y: points(data, phase, pick, value), name,
      text: pick.map((i) => `${charts.safe(p.module[i])}<br>${phase}, ${p.rows[i]} rows`),
      connectgaps: true, hovertemplate: "%{text}<br>" + name + " %{y:.3g}<extra></extra>",
      line: { color, width: 1.8, dash: phase === "decode" ? "dot" : "solid" }, marker: { size: 5, color },
    }, more || {});
  }

  // Order of execution over both phases: one place per module.
  function places(data) {
    const order = new Map();
    for (const phase of PHASES) data.phases[phase].module.forEach((module, i) => order.set(module, data.phases[phase].order[i]));
    const sorted = [...order.keys()].sort((a, b) => order.get(a) - order.get(b));
    return new Map(sorted.map((module, i) => [module, i]));
  }

  function mark(shape, at, label, c) {
    shape.shapes.push({ type: "line", yref: "paper", y0: 0, y1: 1, x0: at, x1: at, line: { color: c.mark, width: 2 } });
    shape.annotations.push({ yref: "paper", y: 1, yanchor: "top", x: at, xanchor: "left", xshift: 4, showarrow: false, text: label, font: { size: 11, color: c.mark }, bgcolor: c.surface });
  }

  function ticks(names) {
    const step = Math.max(1, Math.ceil(names.length / 12));
    const at = names.map((_, i) => i).filter((i) => i % step === 0);
    return { tickvals: at, ticktext: at.map((i) => charts.safe(short(names[i]))), tickangle: -30 };
  }

  const KINDS = {
    local(element, data, c) {
      const at = places(data);
      const names = [...at.keys()];
      const local = PHASES.some((phase) => data.phases[phase].local_ratio.some((v) => v !== null));
      const value = local ? "local_ratio" : "l2_ratio";
      const traces = PHASES.filter((phase) => data.phases[phase].module.length).map((phase) => {
        const p = data.phases[phase];
        const all = p.module.map((_, i) => i);
        const color = phase === "prefill" ? c.accent : c.target;
        return trace(data, phase, all.map((i) => at.get(p.module[i])), all, value, phase, color, {
          marker: { size: all.map((i) => (p.verdict[i] === "fail" ? 9 : 4)), color: all.map((i) => (p.verdict[i] === "fail" ? c.fail : color)) },
          line: { color, width: 1.2, dash: phase === "decode" ? "dot" : "solid" },
        });
      });
      const shape = charts.frame(c, { x: "", y: { type: "log", ...charts.times } });
      Object.assign(shape.xaxis, ticks(names), { range: [-0.5, names.length - 0.5] });
      shape.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: c.none, width: 1, dash: "dash" } });
      if (data.first && at.has(data.first.module)) mark(shape, at.get(data.first.module), charts.safe(short(data.first.module)), c);
      return [traces, shape];
    },
    depth(element, data, c) {
      const names = [];
      const traces = [];
      for (const phase of PHASES) {
        const p = data.phases[phase];
        if (!p.depth.length) continue;
        p.depth.forEach((i, n) => { names[n] = p.module[i]; });
        const xs = p.depth.map((_, n) => n);
        traces.push(trace(data, phase, xs, p.depth, "base_l2", `expected, ${phase}`, c.expected, { mode: "lines", line: { color: c.expected, width: 4, dash: phase === "decode" ? "dot" : "solid" }, opacity: 0.55 }));
        traces.push(trace(data, phase, xs, p.depth, "l2", `target, ${phase}`, phase === "prefill" ? c.target : c.accent));
      }
      const shape = charts.frame(c, { x: "", y: { type: "log", dtick: 1, exponentformat: "power" } });
      Object.assign(shape.xaxis, ticks(names), { range: [-0.3, names.length - 0.7] });
      if (data.first) {
        const layer = (/\.(\d+)(\.|$)/.exec(data.first.module) || [])[1];
        const here = names.findIndex((name) => name === data.first.module || (layer !== undefined && new RegExp(`\\.${layer}$`).test(name)));
        if (here >= 0) mark(shape, here, "first divergent", c);
      }
      return [traces, shape];
    },
    progression(element, data, c) {
      const p = data.progression;
      const z = p.values.map((line) => line.map((v) => (v === null || v <= 0 ? null : Math.log10(v))));
      const flat = z.flat().filter((v) => v !== null);
      const low = Math.floor(Math.min(...flat)), high = Math.ceil(Math.max(...flat));
      const grid = Array.from({ length: high - low + 1 }, (_, i) => low + i);
      const traces = [{
        type: "heatmap", z, x: p.positions, y: p.taps.map(short), hoverongaps: false, xgap: p.positions.length < 120 ? 1 : 0, ygap: 1, zmin: low, zmax: high,
        customdata: p.values, hovertemplate: "%{y}, position %{x}<br>relative error %{customdata:.3g}<extra></extra>",
        colorscale: [[0, c.good], [0.5, c.soft], [0.75, c.suspect], [0.9, c.fail], [1, c.worst]],
        colorbar: { thickness: 10, outlinewidth: 0, tickvals: grid, ticktext: grid.map((v) => `1e${v}`), tickfont: { size: 11, color: c.muted } },
      }];
      const shape = charts.frame(c, { x: "position", y: { type: "category" } });
      shape.margin.r = 20;
      shape.xaxis.showgrid = shape.yaxis.showgrid = false;
      shape.shapes.push({ type: "line", yref: "paper", y0: 0, y1: 1, x0: data.prompt_length - 0.5, x1: data.prompt_length - 0.5, line: { color: c.text, width: 1.5, dash: "dash" } });
      return [flat.length ? traces : [], shape];
    },
  };

  function draw(box) {
    const data = dataOf(box.dataset.tensors);
    for (const element of box.querySelectorAll("[data-tensor-chart]")) {
      const c = charts.palette();
      const [traces, shape] = KINDS[element.dataset.tensorChart](element, data, c);
      if (!traces.some((one) => (one.z || [one.y]).flat().some((v) => v !== null && v !== undefined))) {
        element.textContent = "not measured";
        element.className = "chart-empty muted";
        element.parentElement.classList.add("unmeasured");
        continue;
      }
      charts.plot(element, traces, shape);
    }
  }

  // The table of all modules, built when it is unfolded; a click on a heading sorts. textContent only.
  const COLUMNS = [
    ["module", "Module"], ["phase", "Phase"], ["rows", "Rows"], ["local_l2", "Own error"], ["local_base_l2", "Dtype noise"],
    ["local_ratio", "Own ratio"], ["l2", "Error since the start"], ["l2_ratio", "L2 ratio"], ["linf_ratio", "L∞ ratio"], ["bc", "BC"],
    ["worst_position", "Worst position"], ["verdict", "Verdict"],
  ];
  const TEXT = new Set(["module", "phase", "verdict"]);

  function records(data) {
    return PHASES.flatMap((phase) => data.phases[phase].module.map((_, i) => {
      const row = { phase };
      for (const [name] of COLUMNS) if (name !== "phase") row[name] = data.phases[phase][name][i];
      row.order = data.phases[phase].order[i];
      row.problem = data.phases[phase].problem[i];
      return row;
    })).sort((a, b) => a.order - b.order || rank(a.phase) - rank(b.phase));
  }

  function show(name, row) {
    const value = row[name];
    if (name === "verdict") return value === "suspect" ? "carries an error on" : value || "not measured";
    if (value === null || value === undefined) return "–";
    return TEXT.has(name) ? value : String(Number(value.toPrecision(4)));
  }

  function moduleTable(data) {
    const table = document.createElement("table");
    table.className = "grid sortable";
    const rows = records(data);
    const head = table.createTHead().insertRow();
    const body = table.createTBody();
    let by = null, down = true;
    const fill = () => {
      const sorted = by === null ? rows : [...rows].sort((a, b) => compare(a[by], b[by], down) || a.order - b.order);
      body.replaceChildren(...sorted.map(line));
    };
    const line = (row) => {
      const tr = document.createElement("tr");
      const first = data.first && row.module === data.first.module && ["both", row.phase].includes(data.first.phase);
      if (row.verdict === "fail") tr.className = first ? "bad first" : "bad";
      for (const [name] of COLUMNS) {
        const cell = tr.insertCell();
        cell.textContent = show(name, row);
        if (!TEXT.has(name)) cell.className = "right";
        if (name === "module") cell.className = "mono";
        if (name === "module" && row.problem) cell.title = row.problem;
      }
      return tr;
    };
    for (const [name, label] of COLUMNS) {
      const th = document.createElement("th");
      th.scope = "col";
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.addEventListener("click", () => {
        down = by === name ? !down : !TEXT.has(name);
        by = name;
        for (const other of head.cells) other.removeAttribute("aria-sort");
        th.setAttribute("aria-sort", down ? "descending" : "ascending");
        fill();
      });
      th.append(button);
      if (!TEXT.has(name)) th.className = "right";
      head.append(th);
    }
    fill();
    return table;
  }

  // What was not measured goes to the end whichever way the column runs.
  function compare(a, b, down) {
    const none = (v) => v === null || v === undefined;
    if (none(a) || none(b)) return none(a) - none(b);
    const way = typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
    return down ? -way : way;
  }

  document.addEventListener("toggle", (event) => {
    const box = event.target.querySelector && event.target.querySelector("[data-modules]");
    if (box && event.target.open && !box.firstChild) box.append(moduleTable(dataOf(box.dataset.modules)));
  }, true);

  charts.register("[data-tensors]", draw);
})();
