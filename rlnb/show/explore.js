// Sliders above, picture below. The numbers come from Python (explore.py);
// nothing is computed here but where on the page each of them stands.

const PLOT = { left: 62, right: 14, height: 215, bottom: 44, title: 24, row: 18 };

const html = (tag, props = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...children);
  return node;
};
const svg = (tag, attributes = {}, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
const ints = (view) => new Uint32Array(bytes(view));
const floats = (view) => new Float32Array(bytes(view));
const bytes = (v) => v.buffer.slice(v.byteOffset, v.byteOffset + v.byteLength);

// ---- numbers: fill the template with the ids of one picture -----------------

function unpack(spec, numbers, index = null) {
  const data = floats(numbers);
  const table = index ? ints(index) : null;
  const columns = new Map(spec.changing.map((column, k) => [column, k]));
  const id = (at, state) =>
    table && columns.has(at)
      ? table[state * columns.size + columns.get(at)]
      : spec.first[at];
  const leaf = (node, state) => {
    const k = id(node.at, state);
    if (node.$ === "text") return spec.texts[k];
    const values = data.subarray(spec.starts[k], spec.starts[k + 1]);
    return node.$ === "number" ? values[0] : values;
  };
  const fill = (node, state) => {
    if (Array.isArray(node)) return node.map((child) => fill(child, state));
    if (node === null || typeof node !== "object") return node;
    if (node.$) return leaf(node, state);
    return Object.fromEntries(
      Object.entries(node).map(([key, child]) => [key, fill(child, state)]),
    );
  };
  // the longest text a place will ever hold: its room is kept, so that the
  // page never jumps while a slider moves
  const longest = (node) => {
    const states = table && columns.size ? table.length / columns.size : 1;
    let text = "";
    for (let state = 0; state < states; state++) {
      const here = leaf(node, state);
      if (here.length > text.length) text = here;
    }
    return text;
  };
  return { at: (state) => fill(spec.template, state), longest };
}

// ---- one panel as SVG --------------------------------------------------------

function drawPanel(root, panel, width) {
  const top = PLOT.title + PLOT.row * panel.legend.length + 6;
  const height = top + PLOT.height + PLOT.bottom;
  const [wide, high] = [width - PLOT.left - PLOT.right, PLOT.height];
  // as in matplotlib: what is not above 0 stands far to the left
  const scale = panel.log_x ? (v) => Math.log(Math.max(v, 1e-300)) : (v) => v;
  const [x0, x1] = [...panel.xlim].map(scale);
  const [y0, y1] = panel.ylim;
  // ±∞ leaves the panel, NaN stands out of sight
  const pin = (v) => (v < 1e6 ? Math.max(v, -1e6) : 1e6);
  const X = (v) => pin(((scale(v) - x0) / (x1 - x0)) * wide);
  const Y = (v) => pin(((y1 - v) / (y1 - y0)) * high);
  const text = (x, y, content, more = {}) => {
    const node = svg("text", { x, y, ...more });
    node.textContent = content;
    return node;
  };

  // a nested svg cuts off what leaves the plot
  const plot = svg("svg", {
    x: PLOT.left, y: top, width: wide, height: high, class: "rlnb-plot",
  });
  // ... but for dots, which are whole or not there at all
  const over = svg("g", { transform: `translate(${PLOT.left},${top})` });
  for (const item of panel.items)
    (item.kind === "Dots" ? over : plot).append(...drawItem(item, X, Y, wide, high));

  const axes = svg("g", { transform: `translate(${PLOT.left},${top})` });
  axes.append(svg("path", { d: `M0,0V${high}H${wide}`, class: "rlnb-axis" }));
  panel.xticks.text.forEach((label, k) => {
    const x = X(panel.xticks.at[k]);
    axes.append(
      svg("path", { d: `M${x},${high}v4`, class: "rlnb-axis" }),
      text(x, high + 17, label, { "text-anchor": "middle", class: "rlnb-xtick" }),
    );
  });
  panel.yticks.text.forEach((label, k) => {
    const y = Y(panel.yticks.at[k]);
    axes.append(
      svg("path", { d: `M0,${y}h-4`, class: "rlnb-axis" }),
      text(-7, y + 4, label, { "text-anchor": "end", class: "rlnb-ytick" }),
    );
  });
  axes.append(
    text(wide / 2, high + 36, panel.xlabel, { "text-anchor": "middle" }),
    text(-high / 2, -48, panel.ylabel, {
      transform: "rotate(-90)", "text-anchor": "middle",
    }),
  );

  const head = svg("g");
  head.append(text(PLOT.left, 16, panel.title, { class: "rlnb-title" }));
  panel.legend.forEach((row, r) => {
    let x = PLOT.left;
    for (const i of row) {
      const item = panel.items[i];
      const y = PLOT.title + PLOT.row * r + 8;
      head.append(swatch(item, x, y), text(x + 27, y + 4, item.name));
      x += 27 + 7.4 * item.name.length + 16;
    }
  });

  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const title = root.querySelector("title");
  title.textContent = `${panel.title}: ${panel.alt.join("; ")}`;
  root.replaceChildren(title, head, axes, plot, over);
}

const ink = (color) => (color === "ink" ? "currentColor" : color);

function swatch(item, x, y) {
  const fill = ink(item.color);
  if (item.kind === "Line")
    return svg("path", {
      d: `M${x},${y}h22`, stroke: fill, "stroke-dasharray": item.dash, class: "rlnb-line",
    });
  if (item.kind === "Dots") return svg("circle", { cx: x + 11, cy: y, r: 4.5, fill });
  const opacity = item.kind === "Band" ? 0.25 : 1;
  return svg("rect", { x: x + 5, y: y - 6, width: 12, height: 12, fill, opacity });
}

function drawItem(item, X, Y, wide, high) {
  const fill = ink(item.color);
  if (item.kind === "Line") {
    const d = pathThrough(item.x, item.y, X, Y);
    return [
      svg("path", {
        d, stroke: fill, "stroke-dasharray": item.dash,
        class: "rlnb-line", "data-name": item.name,
      }),
    ];
  }
  if (item.kind === "Dots")
    return [...item.x]
      .map((x, k) => [X(x), Y(item.y[k])])
      .filter(([x, y]) => x > -1 && x < wide + 1 && y > -1 && y < high + 1)
      .map(([cx, cy]) =>
        svg("circle", { cx, cy, r: 5, fill, class: "rlnb-dot", "data-name": item.name }),
      );
  if (item.kind === "Bars")
    return [...item.x].map((x, k) => {
      const [left, right] = [X(x - item.width / 2), X(x + item.width / 2)];
      const [a, b] = [Y(Math.max(item.y[k], 0)), Y(Math.min(item.y[k], 0))];
      return svg("rect", {
        x: left, y: a, width: right - left, height: b - a, fill,
        class: "rlnb-bar", "data-name": item.name,
      });
    });
  if (item.kind === "Band") {
    const [left, right] = [X(item.x0), X(item.x1)];
    return [
      svg("rect", {
        x: left, y: 0, width: right - left, height: high, fill, opacity: 0.15,
        "data-name": item.name,
      }),
    ];
  }
  return drawMark(item, X, Y, wide, high, fill);
}

function drawMark(item, X, Y, wide, high, color) {
  const upright = item.y === null;
  const at = upright ? X(item.x) : Y(item.y);
  const line = svg("path", {
    d: upright ? `M${at},0V${high}` : `M0,${at}H${wide}`,
    stroke: color, class: "rlnb-mark", "data-name": item.label,
  });
  // at the panel's edge the label goes to the side that has room for it
  const room = 7 * item.label.length + 4;
  const left =
    item.side === "left" ? at > room || at + room > wide : at + room > wide && at > room;
  const place = upright
    ? { x: at + (left ? -4 : 4), y: 12, "text-anchor": left ? "end" : "start" }
    : { x: wide - 3, y: at + (item.side === "above" ? -5 : 14), "text-anchor": "end" };
  const label = svg("text", { ...place, style: `fill: ${color}`, class: "rlnb-label" });
  label.textContent = item.label;
  return [line, label];
}

function pathThrough(xs, ys, X, Y) {
  let d = "";
  let pen = "M";
  for (let k = 0; k < xs.length; k++) {
    if (Number.isFinite(xs[k]) && Number.isFinite(ys[k])) {
      d += `${pen}${X(xs[k]).toFixed(2)},${Y(ys[k]).toFixed(2)}`;
      pen = "L";
    } else pen = "M"; // a gap
  }
  return d;
}

// ---- controls: native inputs, so keyboard and screen reader work -----------------

function makeControl(control, read, write) {
  const count = control.values.length;
  // JupyterLab takes the arrow keys unless the focused element itself says no
  const own = (input) => {
    input.setAttribute("data-lm-suppress-shortcuts", "true");
    return input;
  };
  if (control.choice) {
    const group = `rlnb-${Math.random().toString(36).slice(2)}`;
    const inputs = control.values.map((value, k) => {
      const input = own(html("input", { type: "radio", name: group, value }));
      input.addEventListener("change", () => write(k, true));
      return input;
    });
    const node = html("fieldset", { className: "rlnb-choice" });
    node.append(
      html("legend", { textContent: control.label }),
      ...inputs.map((input, k) => html("label", {}, input, control.texts[k])),
    );
    return { node, show: () => (inputs[read()].checked = true) };
  }
  // evenly spaced values are the input's own; others go by their position
  const [first, last] = [control.values[0], control.values[count - 1]];
  const range = control.step
    ? { min: first, max: last, step: control.step }
    : { min: 0, max: count - 1, step: 1 };
  const input = own(html("input", { type: "range", ...range }));
  const position = () =>
    control.step ? Math.round((+input.value - first) / range.step) : +input.value;
  input.setAttribute("aria-label", control.label);
  const output = html("output");
  output.style.minWidth = `${Math.max(...control.texts.map((t) => t.length))}ch`;
  input.addEventListener("input", () => write(position(), false));
  // a drag that ends where it began gives no "change"
  for (const end of ["change", "pointerup", "pointercancel"])
    input.addEventListener(end, () => write(position(), true));
  const node = html("label", { className: "rlnb-slider" });
  node.append(html("span", { textContent: control.label }), input, output);
  const show = () => {
    const k = read();
    if (position() !== k) input.value = control.step ? control.values[k] : k;
    output.textContent = control.texts[k];
    input.setAttribute("aria-valuetext", control.texts[k]);
  };
  input.value = control.step ? control.values[read()] : read();
  return { node, show };
}

// ---- the view -------------------------------------------------------------------

function render({ model, el }) {
  const spec = model.get("spec");
  let pictures = unpack(spec, model.get("numbers"), model.get("index"));

  const position = (control) => {
    const value = model.get(control.name);
    if (control.choice) return Math.max(0, control.values.indexOf(value));
    const distance = control.values.map((v) => Math.abs(v - value));
    return distance.indexOf(Math.min(...distance));
  };
  const positions = () => spec.controls.map(position);
  const state = () =>
    spec.controls.reduce((n, c) => n * c.values.length + position(c), 0);

  // a value under the hand outlives an older one that the kernel sends back
  const held = new Map();
  const controls = spec.controls.map((control) =>
    makeControl(control, () => position(control), (k, released) => {
      const value = control.values[k];
      if (released) held.delete(control.name);
      else held.set(control.name, value);
      model.set(control.name, value);
      if (released) model.save_changes();
    }),
  );
  const bar = html("div", { className: "rlnb-controls" });
  bar.append(...controls.map((control) => control.node));

  const readouts = spec.template.readouts.map((template) => {
    const value = html("span", { className: "rlnb-value" });
    value.style.minWidth = `${pictures.longest(template.text).length}ch`;
    return { value, name: html("span") };
  });
  const numbers = html("div", { className: "rlnb-readouts" });
  numbers.append(...readouts.map((r) => html("div", {}, r.name, " = ", r.value)));

  const alone = spec.template.panels.length === 1;
  const panels = spec.template.panels.map(() =>
    svg("svg", { role: "img" }, svg("title")),
  );
  const row = html("div", { className: "rlnb-panels" });
  row.append(...panels);
  row.classList.toggle("rlnb-alone", alone);

  const says = html("div", { className: "rlnb-says" });
  const now = html("p");
  now.setAttribute("aria-live", "polite");
  const room = html("p", { textContent: pictures.longest(spec.template.says) });
  room.setAttribute("aria-hidden", "true");
  says.append(now, room);

  // one panel alone is drawn wide where there is room, else its text gets tiny
  let width = alone ? 640 : 410;
  let shown = null;
  const show = (picture) => {
    shown = picture;
    picture.panels.forEach((panel, k) => drawPanel(panels[k], panel, width));
    picture.readouts.forEach((readout, k) => {
      readouts[k].name.textContent = readout.name;
      readouts[k].value.textContent = readout.text;
    });
    now.textContent = picture.says;
    el.removeAttribute("aria-busy");
  };

  // asking the kernel: one question at a time, then the newest position;
  // without an answer the picture pales, since it isn't the sliders' own
  let waiting = false;
  let again = false;
  const ask = () => {
    again = waiting;
    if (waiting) return;
    waiting = true;
    el.setAttribute("aria-busy", "true");
    model.send({ ask: positions() });
  };
  const answer = (message, buffers) => {
    waiting = false;
    if (message.failed) now.textContent = message.failed;
    else show(unpack(message, buffers[0]).at(0));
    if (again) ask();
  };

  const update = () => {
    for (const [name, value] of held)
      if (model.get(name) !== value) return void model.set(name, value);
    for (const control of controls) control.show();
    if (spec.asks) ask();
    else show(pictures.at(state()));
  };
  const resized = new ResizeObserver(() => {
    const fits = alone && row.clientWidth > 480 ? 640 : 410;
    if (fits === width || !row.clientWidth) return;
    width = fits;
    show(shown);
  });
  // a live picture: its numbers and its shape are replaced together
  const replace = () => {
    pictures = unpack(model.get("spec"), model.get("numbers"), model.get("index"));
    show(pictures.at(0));
  };
  if (!spec.controls.length) model.on("change", replace);
  const changes = spec.controls.map((control) => `change:${control.name}`);
  for (const change of changes) model.on(change, update);
  model.on("msg:custom", answer);

  el.classList.add("rlnb");
  el.append(bar, numbers, row, says);
  show(pictures.at(spec.asks ? 0 : state()));
  resized.observe(row);
  for (const control of controls) control.show();
  if (spec.asks && spec.controls.some((c) => position(c) !== c.start)) ask();

  return () => {
    resized.disconnect();
    for (const change of changes) model.off(change, update);
    model.off("change", replace);
    model.off("msg:custom", answer);
  };
}

export default { render };
