"use strict";
// Draws every element of class "drawing" from the JSON beside it: first what is in sight, then
// the rest while the reader reads, one at a time.
(() => {
  const plotlyOptions = { responsive: true, displaylogo: false, displayModeBar: false };

  function drawPlotly(node, data) {
    return window.Plotly.newPlot(node, data.data, data.layout, plotlyOptions);
  }

  function element(parent, tag, className, text) {
    const child = document.createElement(tag);
    child.className = className;
    child.textContent = text;
    return parent.appendChild(child);
  }

  // CircuitsVis paints null white and NaN not at all.
  const blank = (row) => row.map((x) => (x === null ? NaN : x));

  function drawHeads(node, data) {
    const panels = element(node, "div", "panels", "");
    const longNames = data.names.some((name) => name.length > 9);
    const mounts = data.panels.map((panel, k) => {
      const box = element(panels, "div", "panel", "");
      element(box, "p", "panel-title", panel.title);
      const mount = element(box, "div", longNames ? "circuits long" : "circuits", "");
      mount.id = `${node.id}-panel-${k}`;
      window.CircuitsVis.render(mount.id, window.CircuitsVis.AttentionHeads, {
        attention: panel.values.map((head) => head.map(blank)),
        attentionHeadNames: data.names,
        tokens: data.tokens,
        minValue: -data.limit,
        maxValue: data.limit,
        negativeColor: data.negative,
        positiveColor: data.positive,
        maskUpperTri: false,
      });
      return mount;
    });
    drawScale(node, data);
    mounts.forEach((mount) => mirror(mount, mounts.filter((other) => other !== mount)));
  }

  function drawScale(node, data) {
    const scale = element(node, "p", "scale", "");
    element(scale, "span", "", `≤ -${data.limit}`);
    const bar = element(scale, "span", "", "");
    bar.style.background = `linear-gradient(90deg, ${data.negative}, #fff, ${data.positive})`;
    element(scale, "span", "", `≥ ${data.limit}`);
  }

  // A head chosen in one panel is chosen in the others: repeat the reader's events there.
  function mirror(mount, others) {
    const thumbnails = (root) => [...root.querySelectorAll("h4")].map((h) => h.closest("div").parentElement);
    for (const type of ["click", "mouseover", "mouseout"]) {
      mount.addEventListener(type, (event) => {
        if (!event.isTrusted) return;
        const k = thumbnails(mount).findIndex((box) => box.contains(event.target));
        if (k < 0) return;
        for (const other of others) {
          thumbnails(other)[k]?.dispatchEvent(new MouseEvent(type, { bubbles: true }));
        }
      });
    }
  }

  const draw = { plotly: drawPlotly, heads: drawHeads };
  const waiting = new Set(document.querySelectorAll(".drawing"));

  function show(node) {
    if (!waiting.delete(node)) return;
    observer.unobserve(node);
    try {
      node.replaceChildren();
      draw[node.dataset.kind](node, drawingOf(node.id));
      node.dataset.drawn = "yes";
    } catch (error) {
      node.replaceChildren();
      element(node, "p", "failed", `This figure could not be drawn: ${error.message}`);
      console.error(error);
    }
  }

  const dataOf = (id) => JSON.parse(document.getElementById(id).textContent);

  // The hover texts of a map are stored in parts, see hovers.py.
  function spellOut({ rows, columns, words, blank, rest }) {
    const end = (text) => (text === null ? blank : (words + text).replaceAll("\n", "<br>"));
    return rest.map((row, i) => row.map((text, j) => rows[i] + columns[j] + end(text)));
  }

  function drawingOf(id) {
    const drawing = dataOf(`${id}-data`);
    for (const trace of drawing.data ?? []) {
      if (trace.hover) trace.hovertext = spellOut(trace.hover);
      delete trace.hover;
    }
    return drawing;
  }

  for (const select of document.querySelectorAll("select[data-figure]")) {
    select.addEventListener("change", () => {
      const node = document.getElementById(select.dataset.figure);
      show(node);
      const choice = dataOf(`${node.id}-choices`)[Number(select.value)];
      node.setAttribute("aria-label", choice.label);
      const drawing = drawingOf(node.id);
      const traces = drawing.data.map((trace, k) => ({ ...trace, ...choice.traces[k] }));
      window.Plotly.react(node, traces, drawing.layout, plotlyOptions);
    });
  }

  const observer = new IntersectionObserver(
    (entries) => entries.filter((e) => e.isIntersecting).forEach((e) => show(e.target)),
    { rootMargin: "300px" },
  );
  waiting.forEach((node) => observer.observe(node));

  const idle = window.requestIdleCallback ?? ((f) => setTimeout(f, 100));
  function next() {
    const [node] = waiting;
    if (node === undefined) return;
    show(node);
    idle(next);
  }
  window.addEventListener("load", () => idle(next));
  window.addEventListener("beforeprint", () => waiting.forEach(show));
})();
