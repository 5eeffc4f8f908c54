"use strict";
// Heat maps of KV caches on canvases, drawn when they come into view. Text is only ever set as text.
(function () {
  const LEFT = 34, BOTTOM = 20, TOP = 4, BAR = 58, ROW = 18;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const drawn = new Map();

  function colours() {
    return { good: css("--heat-good"), soft: css("--heat-soft"), suspect: css("--suspect"), fail: css("--fail"), worst: css("--heat-worst"),
      none: css("--none-soft"), text: css("--muted"), line: css("--line"), mark: css("--mark"), strong: css("--text"), key: css("--expected"), value: css("--target") };
  }

  const rgb = (hex) => { const full = hex.length === 4 ? "#" + [...hex.slice(1)].map((x) => x + x).join("") : hex; return [1, 3, 5].map((i) => parseInt(full.slice(i, i + 2), 16)); };
  function between(stops, value) {
    let at = 0;
    while (at < stops.length - 2 && value > stops[at + 1][0]) at++;
    const [from, a] = stops[at], [to, b] = stops[at + 1];
    const share = Math.min(1, Math.max(0, (value - from) / (to - from || 1)));
    const x = rgb(a), y = rgb(b);
    return `rgb(${x.map((v, i) => Math.round(v + share * (y[i] - v))).join(",")})`;
  }

  // Ratios are coloured by their logarithm: calm up to 1.5, loud from the guard on.
  const ratioStops = (c, guard) => [[Math.log10(0.3), c.good], [0, c.good], [Math.log10(1.5), c.soft], [Math.log10(guard), c.suspect], [Math.log10(guard) + 0.01, c.fail], [Math.log10(guard) + 1.3, c.worst]];
  const scale = {
    ratio: (c, data) => ({ colour: (v) => between(ratioStops(c, data.guard), Math.log10(Math.max(v, 1e-3))), ticks: [1, data.guard, data.guard * 10], name: (v) => `${Number(v.toPrecision(3))}×`, marked: data.guard }),
    bc: (c) => ({ colour: (v) => between([[0, c.worst], [0.8, c.fail], [0.9, c.suspect], [0.99, c.soft], [0.991, c.good], [1, c.good]], v), ticks: [1, 0.99, 0.9], name: (v) => String(v), marked: 0.99 }),
  };

  const show = (value) => (value === null ? "not measured" : value >= 1e29 ? "infinite" : String(Number(value.toPrecision(3))));

  function prepare(canvas, height) {
    const width = Math.max(200, canvas.clientWidth || canvas.parentElement.clientWidth - 24);
    const dots = window.devicePixelRatio || 1;
    canvas.style.height = height + "px";
    canvas.width = width * dots;
    canvas.height = height * dots;
    const pen = canvas.getContext("2d");
    pen.scale(dots, dots);
    pen.font = "11px system-ui, sans-serif";
    pen.clearRect(0, 0, width, height);
    return [pen, width];
  }

  function heat(canvas, data, side, kind) {
    const c = colours(), rows = data.sides[side][kind];
    const count = Math.max(1, ...rows.map((row) => row.length));
    const cell = Math.max(4, Math.min(ROW, 420 / rows.length));
    const [pen, width] = prepare(canvas, rows.length * cell + TOP + BOTTOM);
    const look = (kind === "bc" ? scale.bc : scale.ratio)(c, data);
    const wide = (width - LEFT - BAR) / count;
    const gap = wide > 5 && cell > 5 ? 1 : 0;
    rows.forEach((row, y) => row.forEach((value, x) => {
      pen.fillStyle = value === null ? c.none : look.colour(value);
      pen.fillRect(LEFT + x * wide, TOP + y * cell, wide - gap + (gap ? 0 : 0.5), cell - gap);
    }));
    pen.fillStyle = c.text;
    pen.textAlign = "right"; pen.textBaseline = "middle";
    const each = Math.ceil(12 / cell);
    data.layers.forEach((layer, y) => { if (y % each === 0) pen.fillText(layer, LEFT - 6, TOP + (y + 0.5) * cell); });
    pen.textAlign = "center"; pen.textBaseline = "top";
    const skip = Math.max(1, Math.ceil(36 / wide));
    for (let x = 0; x < count; x += skip) pen.fillText(kind === "positions" ? x * data.step : x, LEFT + (x + 0.5) * wide, TOP + rows.length * cell + 4);
    if (kind === "positions" && data.prompt < data.positions) {
      pen.fillStyle = c.mark;
      pen.fillRect(LEFT + (data.prompt / data.step) * wide - 1, TOP, 2, rows.length * cell);
    }
    const bad = data.bad;
    if (bad && bad.which === side && kind !== "bc") {
      const x = kind === "positions" ? (bad.position === null ? null : Math.floor(bad.position / data.step)) : bad.head;
      if (x !== null) {
        pen.strokeStyle = c.strong; pen.lineWidth = 2;
        const grow = Math.max(wide, 6);
        pen.strokeRect(LEFT + (x + 0.5) * wide - grow / 2, TOP + data.layers.indexOf(bad.layer) * cell, grow, cell - gap);
      }
    }
    legend(pen, c, look, width - BAR + 14, rows.length * cell, kind);
    return { rows, wide, cell, kind, data };
  }

  function legend(pen, c, look, x, height, kind) {
    const tall = Math.max(height, 36);
    const lowest = kind === "bc" ? 0.8 : Math.log10(0.5), highest = kind === "bc" ? 1 : Math.log10(look.marked) + 1.3;
    for (let y = 0; y < height; y++) {
      const v = highest - (y / height) * (highest - lowest);
      pen.fillStyle = look.colour(kind === "bc" ? v : 10 ** v);
      pen.fillRect(x, TOP + y, 8, 1.5);
    }
    pen.textAlign = "left"; pen.textBaseline = "middle";
    let last = -20;
    for (const tick of kind === "bc" ? look.ticks : [...look.ticks].reverse()) {
      const v = kind === "bc" ? tick : Math.log10(tick);
      const y = TOP + ((highest - v) / (highest - lowest)) * height;
      if (y - last < 12 || y > tall + TOP) continue;
      last = y;
      pen.fillStyle = tick === look.marked ? c.strong : c.text;
      pen.fillText(look.name(tick), x + 12, Math.max(y, TOP + 5));
    }
  }

  function profile(canvas, data) {
    const c = colours(), height = 170;
    const [pen, width] = prepare(canvas, height);
    const lines = ["key", "value"].map((side) => data.sides[side].heads.map((row) => Math.max(0.01, ...row.map((v) => (v === null ? 0.01 : Math.min(v, 1e6))))));
    const highest = Math.log10(Math.max(data.guard * 2, ...lines.flat())), lowest = Math.min(-0.35, Math.log10(Math.min(...lines.flat())));
    const X = (i) => LEFT + ((width - LEFT - BAR) * (i + 0.5)) / data.layers.length;
    const Y = (v) => TOP + (height - TOP - BOTTOM) * (1 - (Math.log10(v) - lowest) / (highest - lowest));
    pen.strokeStyle = c.line; pen.fillStyle = c.text; pen.textAlign = "right"; pen.textBaseline = "middle";
    for (let power = Math.ceil(lowest); power <= highest; power++) { pen.beginPath(); pen.moveTo(LEFT, Y(10 ** power)); pen.lineTo(width - BAR, Y(10 ** power)); pen.stroke(); pen.fillText(10 ** power + "×", LEFT - 4, Y(10 ** power)); }
    pen.setLineDash([5, 4]); pen.strokeStyle = c.fail; pen.beginPath(); pen.moveTo(LEFT, Y(data.guard)); pen.lineTo(width - BAR, Y(data.guard)); pen.stroke(); pen.setLineDash([]);
    pen.fillStyle = c.fail; pen.textAlign = "left"; pen.fillText(`guard ${data.guard}×`, width - BAR + 4, Y(data.guard));
    lines.forEach((line, s) => {
      const colour = s ? c.value : c.key;
      pen.strokeStyle = pen.fillStyle = colour; pen.lineWidth = 1.8; pen.beginPath();
      line.forEach((v, i) => (i ? pen.lineTo(X(i), Y(v)) : pen.moveTo(X(i), Y(v))));
      pen.stroke();
      line.forEach((v, i) => { pen.beginPath(); pen.arc(X(i), Y(v), 2.6, 0, 7); pen.fill(); });
      pen.fillText(s ? "V" : "K", width - BAR + 4, TOP + 10 + 16 * s);
    });
    pen.fillStyle = c.text; pen.textAlign = "center"; pen.textBaseline = "top";
    const skip = Math.ceil((data.layers.length * 26) / (width - LEFT - BAR)) || 1;
    data.layers.forEach((layer, i) => { if (i % skip === 0) pen.fillText(layer, X(i), height - BOTTOM + 4); });
  }

  function draw(canvas) {
    const body = canvas.closest("[data-kv]");
    const source = body && body.querySelector("[data-kv-data]");
    if (!source) return;
    const data = JSON.parse(source.textContent);
    const [side, kind] = canvas.dataset.kvMap.split(".");
    drawn.set(canvas, kind ? heat(canvas, data, side, kind) : (profile(canvas, data), null));
  }

  function tell(canvas, x, y) {
    const map = drawn.get(canvas), line = canvas.parentElement.querySelector(".kvmap-at");
    if (!map || !line) return;
    const column = Math.floor((x - LEFT) / map.wide), row = Math.floor((y - TOP) / map.cell);
    const value = map.rows[row] && map.rows[row][column];
    if (value === undefined) { line.textContent = "\u00a0"; return; }
    const step = map.data.step, first = column * step;
    const where = map.kind === "positions" ? (step > 1 ? `positions ${first}–${Math.min(first + step, map.data.positions) - 1} (worst)` : `position ${first}`) : `head ${column}`;
    const part = map.kind === "positions" ? (first < map.data.prompt ? ", prefill" : ", decode") : "";
    line.textContent = `layer ${map.data.layers[row]}, ${where}${part}: ${show(value)}${map.kind === "bc" || value === null ? "" : "×"}`;
  }

  document.addEventListener("mousemove", (event) => {
    if (event.target.matches && event.target.matches("[data-kv-map]")) tell(event.target, event.offsetX, event.offsetY);
  });
  // Arrow keys walk over the cells of a map that has the focus.
  document.addEventListener("keydown", (event) => {
    const map = event.target.matches && event.target.matches("[data-kv-map]") && drawn.get(event.target);
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!map || !move) return;
    event.preventDefault();
    const at = map.at || [0, 0];
    map.at = [Math.min(Math.max(at[0] + move[0], 0), map.rows[0].length - 1), Math.min(Math.max(at[1] + move[1], 0), map.rows.length - 1)];
    tell(event.target, LEFT + (map.at[0] + 0.5) * map.wide, TOP + (map.at[1] + 0.5) * map.cell);
  });

  const again = () => { for (const canvas of drawn.keys()) if (canvas.offsetParent) draw(canvas); };
  const seen = new IntersectionObserver((entries) => { for (const entry of entries) if (entry.isIntersecting) draw(entry.target); }, { rootMargin: "200px" });
  const watch = () => { for (const canvas of document.querySelectorAll("[data-kv-map]")) seen.observe(canvas); };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", watch); else watch();
  addEventListener("resize", again);
  addEventListener("beforeprint", () => { for (const canvas of document.querySelectorAll("[data-kv-map]")) draw(canvas); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  new MutationObserver(again).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
})();
