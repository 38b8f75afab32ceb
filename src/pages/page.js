// Draws the charts of a page, and lets its tables sort and filter. A <figure> holds the data of its chart as JSON:
//
//   xy     xs: [{key, label, unit}], y: {label, unit, log}, xlog, smooth, square, same (both axes have one range),
//          series: [{name, color, dash, points, quiet, x: {key: [...]}, y: [...], tips: [...]}],
//          marks: [{name, x: {key: n}}], vlines and hlines: [{at, label}]
//   bars   unit, rows: [{label, parts: [[name, value], ...], range: [low, high], dot}]
//   rects  x: {label, unit, to (the axis goes on to there)} or {label, labels: [...]}, xlog, y: {label, unit} or {labels: [...], room: letters that labels have at least}, names: [...], classes: [name, ...],
//          rects: [[x0, x1, y0, y1, class, name], ...], texts: [what stands in a rect, ...]; for a heat map `heat`: its unit, a value for the class, and
//          `low` and `high` where its colours begin and end
//   mesh   mesh: [[axis, size], ...], hosts: [[name, ranks], ...] in order of their ranks, links: [name by axis] or none
//   cut    mesh: [[axis, size], ...], tensors: [{name, kind, made, source, dtype, bytes, partial, combiner,
//          dims: [[name, size, padded, [axis, ...]], ...]}]
(function () {
"use strict";
const NS = "http://www.w3.org/2000/svg";
const el = (tag, attrs, ...kids) => fill(document.createElement(tag), attrs, kids);
const svg = (tag, attrs, ...kids) => fill(document.createElementNS(NS, tag), attrs, kids);
function fill(node, attrs, kids) {
  for (const k in attrs || {}) {
    if (k.startsWith("on")) node.addEventListener(k.slice(2), attrs[k]);
    else if (attrs[k] !== null && attrs[k] !== undefined) node.setAttribute(k, attrs[k]);
  }
  node.append(...kids.filter(k => k !== null && k !== undefined));
  return node;
}
// The width of a digit of the charts' texts, for room to leave.
const CHAR = (() => {
  const probe = svg("text", {}, "0".repeat(20)), plot = svg("svg", {class: "plot"}, probe);
  document.body.append(plot);
  const width = probe.getComputedTextLength() / 20;
  plot.remove();
  return Math.max(width, 5);
})();
const color = n => `var(--c${((n % 8) + 8) % 8})`;
const colors = new Map();
// The number of each name's colour: a name has one colour in all charts of a page, and the names of a chart have different ones.
function colorsOf(names) {
  const taken = new Set(names.filter(n => colors.has(n)).map(n => colors.get(n)));
  return names.map((name, i) => {
    if (!colors.has(name)) {
      const free = [0, 1, 2, 3, 4, 5, 6, 7].find(c => !taken.has(c)) ?? i % 8;
      colors.set(name, free);
      taken.add(free);
    }
    return colors.get(name);
  });
}

const short = v => String(+v.toPrecision(4));
function fmt(v, unit) {
  if (v === null || v === undefined || !isFinite(v)) return "-";
  const a = Math.abs(v);
  if (unit === "%") return short(100 * v) + " %";
  if (unit === "s") return a === 0 ? "0 s" : a < 1e-3 ? short(1e6 * v) + " us" : a < 1 ? short(1e3 * v) + " ms" : a < 600 ? short(v) + " s" : (v / 60).toFixed(1) + " min";
  if (!unit || unit === "#") return a >= 1e7 ? scaled(v, "") : Number.isInteger(v) ? String(v) : short(v);
  return scaled(v, unit);
}
function scaled(v, unit) {
  let p = 0;
  while (Math.abs(v) >= 1000 && p < 6) { v /= 1000; ++p; }
  return (short(v) + " " + "kMGTPE".charAt(p - 1) + unit).trim();
}

// ---- code

const listing = JSON.parse((document.getElementById("code") || {textContent: "{}"}).textContent);
// What stands at "model.cpp:41": the line, and the lines around it with their numbers; null where it is not known.
function code(place) {
  const colon = place.lastIndexOf(":"), file = listing[place.slice(0, colon)], at = +place.slice(colon + 1);
  if (!file || typeof file[at] !== "string") return null;
  const near = Object.keys(file).map(Number).filter(n => n >= at - 2 && n <= at + 3 && typeof file[n] === "string"), wide = String(at + 3).length;
  return {line: file[at].trim(), around: near.map(n => `${n === at ? ">" : " "} ${String(n).padStart(wide)}  ${file[n]}`.trimEnd()).join("\n")};
}
// A text whose lines may be places, with their code.
const withCode = text => text.split("\n").map(l => { const c = code(l); return c ? `${l}  ${c.line}` : l; }).join("\n");

// ---- scales

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw) || 10 * power;
  const list = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step && list.length < 50; ++i) list.push(i * step);
  return list;
}
function logTicks(low, high, count) {
  const list = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); ++p)
    for (const m of [1, 2, 5]) { const v = m * 10 ** p; if (v >= low * 0.999 && v <= high * 1.001) list.push([v, m]); }
  let kept = list;
  if (kept.length > count) kept = list.filter(t => t[1] === 1);
  if (kept.length > count) kept = kept.filter((t, i) => i % Math.ceil(kept.length / count) === 0);
  return kept.length >= 2 ? kept.map(t => t[0]) : ticks(low, high, count).filter(v => v > 0);
}
function scale(low, high, from, to, log) {
  if (!(high > low)) { const by = low === 0 ? 1 : Math.abs(low) * 0.1; low -= log ? by / 2 : by; high += by; }
  const f = log ? Math.log10 : v => v, a = f(low), b = f(high);
  const s = v => from + (f(v) - a) / (b - a) * (to - from);
  s.invert = p => { const v = a + (p - from) / (to - from) * (b - a); return log ? 10 ** v : v; };
  s.low = low; s.high = high;
  s.ticks = n => log ? logTicks(low, high, n) : ticks(low, high, n);
  return s;
}

// ---- what all charts share: caption, controls, tip, cursor by mouse and keys, zoom along x

const charts = [];
const PAPER = 640;  // the width of a chart on paper, A4 or letter
let printing = false;
function print(on) { printing = on; charts.forEach(c => c.draw()); }
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));

class Chart {
  constructor(figure, spec) {
    this.figure = figure; this.spec = spec; this.zoom = null; this.hidden = new Set(); this.at = -1;
    this.controls = el("div", {class: "controls"});
    this.legend = el("div", {class: "legend"});
    this.svg = svg("svg", {class: "plot", role: "img", tabindex: 0, "aria-label": (spec.title || "chart") + this.keys()});
    this.tip = el("div", {class: "tip", role: "status", hidden: ""});
    this.setup();
    if (this.controls.children.length) figure.append(this.controls);
    figure.append(this.legend, this.svg, this.tip);
    this.svg.addEventListener("pointermove", e => this.move(e));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("keydown", e => this.key(e));
    new ResizeObserver(() => { if (this.width() !== this.drawn) this.draw(); }).observe(figure);
    this.draw();
  }
  setup() {}
  width() { const s = getComputedStyle(this.figure); return printing ? PAPER : Math.max(220, Math.floor(this.figure.clientWidth - parseFloat(s.paddingLeft) - parseFloat(s.paddingRight))); }
  begin(height) {
    this.drawn = this.width(); this.w = this.drawn; this.h = height;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${this.w} ${height}`);
    this.svg.style.height = height + "px";
  }
  add(tag, attrs, ...kids) { const node = svg(tag, attrs, ...kids); this.svg.append(node); return node; }
  text(x, y, text, attrs) { return this.add("text", Object.assign({x: x.toFixed(1), y: y.toFixed(1)}, attrs), text); }
  point(e) { const box = this.svg.getBoundingClientRect(); return [(e.clientX - box.left) * this.w / box.width, (e.clientY - box.top) * this.h / box.height]; }
  show(x, y, text) {
    this.tip.textContent = text; this.tip.hidden = false;
    const box = this.svg.getBoundingClientRect(), out = this.figure.getBoundingClientRect();
    const left = box.left - out.left + x, width = this.tip.offsetWidth;
    this.tip.style.left = Math.max(2, Math.min(left + 14 + width > out.width ? left - width - 14 : left + 14, out.width - width - 2)) + "px";
    this.tip.style.top = box.top - out.top + Math.max(0, y - 10) + "px";
  }
  leave() { this.tip.hidden = true; this.drag = null; if (this.cursor) this.cursor.setAttribute("visibility", "hidden"); if (this.brush) this.brush.setAttribute("width", 0); }
  key() {}
  toggles(names) {
    this.legend.replaceChildren(...names.map(([name, swatch, id]) => el("button", {type: "button", "aria-pressed": "true", onclick: e => {
      this.hidden.has(id) ? this.hidden.delete(id) : this.hidden.add(id);
      e.currentTarget.setAttribute("aria-pressed", String(!this.hidden.has(id)));
      this.draw();
    }}, el("i", {style: swatch}), name)));
  }
  marks(names) { this.legend.replaceChildren(...names.map(([name, swatch]) => el("span", {}, el("i", {style: swatch}), name))); }
  choice(label, options, change) {
    this.controls.append(el("label", {}, label + " ", el("select", {onchange: e => { change(e.target.value); this.draw(); }}, ...options.map(([v, t]) => el("option", {value: v}, t)))));
  }
  check(label, on, change) {
    const box = el("input", {type: "checkbox", onchange: e => { change(e.target.checked); this.draw(); }});
    box.checked = on;
    this.controls.append(el("label", {}, box, label));
  }
  // Axes of a plot with scales this.x and this.y.
  yTicks(top, bottom) { return Math.max(2, Math.floor((this.h - top - bottom) / 42)); }
  frame(left, right, top, bottom, xUnit, xLabel, yUnit, yLabel, yTicks) {
    const {w, h} = this;
    for (const t of yTicks || this.y.ticks(this.yTicks(top, bottom))) {
      const y = this.y(t);
      this.add("line", {class: "grid-line", x1: left, x2: w - right, y1: y, y2: y});
      this.text(left - 6, y + 4, fmt(t, yUnit), {class: "tick", "text-anchor": "end"});
    }
    let free = -1e9;
    const named = this.spec.x && this.spec.x.labels;
    const list = named ? named.map((_, i) => i + 0.5) : this.x.ticks(Math.max(2, Math.floor((w - left - right) / 85)));
    for (const t of list) {
      const label = named ? named[Math.floor(t)] : fmt(t, xUnit), half = label.length * CHAR / 2, x = this.x(t), mid = Math.min(Math.max(x, half), w - half);
      this.add("line", {class: "axis", x1: x, x2: x, y1: h - bottom, y2: h - bottom + 4});
      if (mid - half < free + 6) continue;
      this.text(mid, h - bottom + 17, label, {class: "tick", "text-anchor": "middle"});
      free = mid + half;
    }
    this.add("line", {class: "axis", x1: left, x2: w - right, y1: h - bottom, y2: h - bottom});
    if (xLabel) this.text(w - right, h - 3, xLabel, {class: "tick", "text-anchor": "end"});
    if (yLabel && yLabel !== this.spec.title) this.text(2, 12, yLabel, {class: "tick"});
  }
  clip(left, right, top, bottom) {
    const id = "clip" + (Chart.count = (Chart.count || 0) + 1);
    this.add("clipPath", {id}, svg("rect", {x: left, y: top, width: Math.max(1, this.w - left - right), height: Math.max(1, this.h - top - bottom)}));
    return this.add("g", {"clip-path": `url(#${id})`});
  }
  zoomable() {
    const reset = el("button", {type: "button", hidden: "", onclick: () => this.setZoom(null)}, "whole range");
    this.reset = reset; this.controls.append(reset);
    this.svg.addEventListener("pointerdown", e => { if (e.pointerType !== "touch") this.drag = this.point(e)[0]; });
    this.svg.addEventListener("pointerup", e => {
      const from = this.drag, to = this.point(e)[0];
      this.drag = null;
      if (from !== null && from !== undefined && Math.abs(to - from) > 6) this.setZoom([this.x.invert(Math.min(from, to)), this.x.invert(Math.max(from, to))]);
    });
    this.svg.addEventListener("dblclick", () => this.setZoom(null));
  }
  keys() { return "; arrow keys move the cursor, plus and minus zoom"; }
  setZoom(range) { this.zoom = range; this.reset.hidden = !range; this.draw(); }
  zoomBy(factor, centre) {
    const f = this.spec.xlog ? Math.log10 : v => v, g = this.spec.xlog ? v => 10 ** v : v => v;
    const a = f(this.x.low), b = f(this.x.high), c = f(centre === undefined ? g((a + b) / 2) : centre);
    this.setZoom(factor > 1 && !this.zoom ? null : [g(c - (c - a) * factor), g(c + (b - c) * factor)]);
  }
  stretch(e) {
    if (this.drag === null || this.drag === undefined) return false;
    const x = this.point(e)[0];
    this.brush.setAttribute("x", Math.min(x, this.drag)); this.brush.setAttribute("width", Math.abs(x - this.drag));
    return true;
  }
}

class XY extends Chart {
  setup() {
    const s = this.spec;
    this.xkey = s.xs[0].key; this.ylog = !!s.y.log; this.smooth = 0;
    if (s.xs.length > 1) this.choice("by", s.xs.map(x => [x.key, x.label]), v => { this.xkey = v; this.setZoom(null); });
    if (s.y.log !== undefined) this.check("log scale", this.ylog, on => { this.ylog = on; });
    if (s.smooth) {
      const out = el("output", {}, "none");
      this.controls.append(el("label", {}, "smoothing ", el("input", {type: "range", min: 0, max: 99, value: 0, oninput: e => { this.smooth = e.target.value / 100; out.textContent = this.smooth ? this.smooth.toFixed(2) : "none"; this.draw(); }}), out));
    }
    this.zoomable();
    const named = s.series.filter(c => c.name);
    if (named.length > 1) this.toggles(s.series.map((c, i) => [c, i]).filter(p => p[0].name).map(([c, i]) => [c.name, this.swatch(c, i), i]));
  }
  swatch(c, i) {
    const k = color(c.color === undefined ? i : c.color);
    return c.points ? `background:${k};border-radius:50%;width:10px;height:10px` : c.dash ? `background:repeating-linear-gradient(90deg,${k} 0 4px,transparent 4px 7px);height:3px` : `background:${k};height:3px`;
  }
  smoothed(c) {
    if (!this.smooth || c.points || c.quiet) return c.y;
    let mean = 0, weight = 0;
    return c.y.map(v => { if (v === null) return null; mean = this.smooth * mean + (1 - this.smooth) * v; weight = this.smooth * weight + 1 - this.smooth; return mean / weight; });
  }
  draw() {
    const s = this.spec, xs = s.xs.find(x => x.key === this.xkey);
    this.begin(s.square ? Math.min(460, Math.max(260, this.width() * 0.7)) : 250);
    const shown = s.series.map((c, i) => Object.assign({i, xv: c.x[this.xkey] || []}, c)).filter(c => !this.hidden.has(c.i) && c.xv.length);
    const okX = v => v != null && (!s.xlog || v > 0), okY = v => v != null && (!this.ylog || v > 0);
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const c of shown) for (const v of c.xv) if (okX(v)) { if (v < x0) x0 = v; if (v > x1) x1 = v; }
    if (this.zoom) [x0, x1] = this.zoom;
    for (const c of shown) c.y.forEach((v, k) => { const x = c.xv[k]; if (okY(v) && okX(x) && x >= x0 && x <= x1) { if (v < y0) y0 = v; if (v > y1) y1 = v; } });
    for (const l of s.hlines || []) if (okY(l.at)) { y0 = Math.min(y0, l.at); y1 = Math.max(y1, l.at); }
    for (const l of s.vlines || []) if (!this.zoom) { x0 = Math.min(x0, l.at); x1 = Math.max(x1, l.at); }
    if (!isFinite(y0) || !isFinite(x0)) { this.pts = []; this.text(10, 30, "no values", {class: "tick"}); return; }
    if (s.same && !this.zoom) { x0 = y0 = Math.min(x0, y0); x1 = y1 = Math.max(x1, y1); }
    const pad = this.ylog ? 1.06 : 0.04 * (y1 - y0);
    if (this.ylog) { y0 /= pad; y1 *= pad; } else { y0 -= pad; y1 += pad; }
    if (s.xlog) { x0 /= 1.1; x1 *= 1.1; } else if (shown.some(c => c.points) && !this.zoom) { const by = 0.03 * (x1 - x0); x0 -= by; x1 += by; }
    const top = (s.marks || []).some(m => m.name !== "save") ? 38 : 24, bottom = 34;
    let y = scale(y0, y1, this.h - bottom, top, this.ylog);
    const left = 12 + CHAR * Math.max(...y.ticks(this.yTicks(top, bottom)).map(t => fmt(t, s.y.unit).length), 2);
    const right = 14;
    this.x = scale(x0, x1, left, this.w - right, s.xlog); this.y = y;
    this.frame(left, right, top, bottom, xs.unit, xs.label, s.y.unit, s.y.label);
    const g = this.clip(left, right, top, bottom);
    this.pts = [];
    let labelFree = -1e9;
    for (const m of s.marks || []) {
      const v = m.x[this.xkey];
      if (v === undefined || v < x0 || v > x1) continue;
      const px = this.x(v);
      const quiet = m.name === "save";  // a tick at the bottom; others are lines with a name
      g.append(svg("line", {class: quiet ? "cursor" : "mark", x1: px, x2: px, y1: quiet ? this.h - bottom - 6 : top, y2: this.h - bottom}));
      const width = m.name.length * CHAR, at = Math.max(left + 2, Math.min(px - width / 2, this.w - right - width));
      if (quiet || at < labelFree) continue;
      this.text(at, top - 6, m.name, {class: "tick"});
      labelFree = at + width + 6;
    }
    for (const l of s.hlines || []) {
      g.append(svg("line", {class: "mark", x1: left, x2: this.w - right, y1: y(l.at), y2: y(l.at)}));
      this.text(this.w - right - 2, y(l.at) + (y(l.at) < top + 16 ? 13 : -4), l.label, {class: "tick", "text-anchor": "end"});
    }
    for (const l of s.vlines || []) {
      const px = this.x(l.at);
      g.append(svg("line", {class: "mark", x1: px, x2: px, y1: top, y2: this.h - bottom}));
      const before = px > (left + this.w) / 2;
      this.text(px + (before ? -4 : 4), this.h - bottom - 6, l.label, {class: "tick", "text-anchor": before ? "end" : "start"});
    }
    for (const c of shown) {
      const stroke = color(c.color === undefined ? c.i : c.color), smooth = this.smoothed(c);
      const place = (values, keep) => {
        let d = "", up = true;
        values.forEach((v, k) => {
          if (!okY(v) || !okX(c.xv[k])) { up = true; return; }
          const px = this.x(c.xv[k]), py = y(v);
          if (px < -1e4 || px > 1e5) { up = true; return; }
          if (keep && !c.quiet) this.pts.push([px, py, c, k, c.y[k]]);
          const alone = up && !(okY(values[k + 1]) && okX(c.xv[k + 1]));
          if (alone && !c.points) g.append(svg("circle", {cx: px.toFixed(1), cy: py.toFixed(1), r: 3, fill: stroke}));
          if (!c.points) d += (up ? "M" : "L") + px.toFixed(1) + " " + py.toFixed(1);
          else g.append(svg("circle", {cx: px.toFixed(1), cy: py.toFixed(1), r: c.big ? 7 : 4, fill: stroke, "fill-opacity": c.big ? 1 : 0.8}));
          up = false;
        });
        return d;
      };
      if (smooth !== c.y) g.append(svg("path", {class: "line raw", d: place(c.y, false), stroke}));
      const d = place(smooth, true);
      if (!c.points) g.append(svg("path", {class: "line", d, stroke, "stroke-dasharray": c.dash ? "5 4" : null}));
    }
    this.pts = this.pts.filter(p => p[0] >= left - 1 && p[0] <= this.w - right + 1).sort((a, b) => a[0] - b[0]);
    this.cursor = this.add("g", {visibility: "hidden"}, svg("line", {class: "cursor", y1: top, y2: this.h - bottom}), svg("circle", {r: 4, fill: "var(--ink)"}));
    this.brush = this.add("rect", {class: "brush", y: top, height: this.h - top - bottom, width: 0});
  }
  move(e) {
    if (!this.pts.length || this.stretch(e)) return;
    const [x, y] = this.point(e);
    let best = -1, least = Infinity;
    this.pts.forEach((p, i) => { const dx = p[0] - x, dy = (p[1] - y) * (this.spec.square ? 1 : 0.15), d = dx * dx + dy * dy; if (d < least) { least = d; best = i; } });
    this.select(best);
  }
  select(i) {
    const p = this.pts[i];
    if (!p) return;
    this.at = i;
    const [px, py, c, k, v] = p, s = this.spec, xs = s.xs.find(x => x.key === this.xkey);
    this.cursor.setAttribute("visibility", "visible");
    this.cursor.firstChild.setAttribute("x1", px); this.cursor.firstChild.setAttribute("x2", px);
    this.cursor.lastChild.setAttribute("cx", px); this.cursor.lastChild.setAttribute("cy", py);
    const lines = c.tips ? [c.tips[k]] : [];
    lines.push(`${xs.label || "x"} ${fmt(c.xv[k], xs.unit)}`);
    if (s.square || c.points) lines.push(`${c.name || s.y.label || ""} ${fmt(v, s.y.unit)}`.trim());
    else for (const q of s.series.map((o, n) => [o, n]).filter(([o, n]) => !o.quiet && !o.points && !this.hidden.has(n) && (o.x[this.xkey] || []).length)) {
      const near = nearest(q[0].x[this.xkey], c.xv[k]);
      if (near >= 0) lines.push(`${q[0].name || s.y.label || s.title} ${fmt(q[0].y[near], s.y.unit)}`);
    }
    for (const m of s.marks || []) if (m.text && Math.abs(this.x(m.x[this.xkey]) - px) < 5) lines.push(m.text);
    this.show(px, py, lines.join("\n"));
  }
  key(e) {
    if (!this.pts || !this.pts.length) return;
    if (e.key === "ArrowRight" || e.key === "ArrowLeft") { this.select(Math.max(0, Math.min(this.pts.length - 1, this.at + (e.key === "ArrowRight" ? 1 : -1)))); e.preventDefault(); }
    else if (e.key === "+" || e.key === "=") this.zoomBy(0.5, this.at >= 0 && this.pts[this.at] ? this.x.invert(this.pts[this.at][0]) : undefined);
    else if (e.key === "-") this.zoomBy(2);
    else if (e.key === "0" || e.key === "Escape") this.setZoom(null);
  }
}
// The index of the value of an ascending list that is nearest to x.
function nearest(list, x) {
  let low = 0, high = list.length - 1;
  if (high < 0) return -1;
  while (high - low > 1) { const mid = (low + high) >> 1; if (list[mid] < x) low = mid; else high = mid; }
  return Math.abs(list[low] - x) <= Math.abs(list[high] - x) ? low : high;
}

class Bars extends Chart {
  setup() {
    this.parts = [];
    for (const row of this.spec.rows) for (const [name] of row.parts) if (!this.parts.includes(name)) this.parts.push(name);
    this.colors = colorsOf(this.parts);
    const extra = this.spec.rows.some(r => r.dot !== undefined) ? [["predicted", "background:var(--ink);border-radius:50%;width:10px;height:10px"]] : [];
    if (this.parts.length > 1 || extra.length) this.marks(this.parts.map((p, i) => [p, `background:${color(this.colors[i])}`]).concat(extra));
  }
  keys() { return "; arrow keys go through the bars"; }
  draw() {
    const s = this.spec, row = 40, top = 4, bottom = s.limit ? 24 : 4;
    this.begin(top + bottom + row * s.rows.length);
    const most = Math.max(...s.rows.map(r => Math.max(r.parts.reduce((a, p) => a + p[1], 0), r.dot || 0, r.range ? r.range[1] : 0)), s.limit ? s.limit.at : 0, 1e-30);
    const left = 2, right = 10 + CHAR * Math.max(...s.rows.map(r => fmt(r.parts.reduce((a, p) => a + p[1], 0), s.unit).length));
    this.x = scale(0, most, left, this.w - right);
    this.hits = [];
    s.rows.forEach((r, i) => {
      const y = top + i * row, whole = r.parts.reduce((a, p) => a + p[1], 0);
      const room = Math.floor((this.w - 6) / CHAR), label = r.label.length > room ? r.label.slice(0, Math.max(1, room - 3)) + "..." : r.label;
      this.text(left, y + 13, label);
      let at = 0;
      for (const [name, value] of r.parts) {
        const x0 = this.x(at), x1 = this.x(at += value);
        this.add("rect", {x: x0, y: y + 18, width: Math.max(0, x1 - x0 - (x1 - x0 > 3 ? 1 : 0)), height: 14, fill: color(this.colors[this.parts.indexOf(name)])});
        const told = fmt(value, s.unit);
        if (r.parts.length > 1 && x1 - x0 > CHAR * told.length + 6)
          this.text((x0 + x1) / 2, y + 29.5, told, {"text-anchor": "middle", "data-on": `--c${this.colors[this.parts.indexOf(name)]}`, style: "fill:var(--paper)"});
        this.hits.push([x0, x1, y, y + row, `${r.label}\n${name} ${fmt(value, s.unit)}${whole > value && whole > 0 ? ` (${short(100 * value / whole)} %)` : ""}`]);
      }
      if (r.range) this.add("path", {d: `M${this.x(r.range[0])} ${y + 25}H${this.x(r.range[1])}M${this.x(r.range[0])} ${y + 20}v10M${this.x(r.range[1])} ${y + 20}v10`, stroke: "var(--ink)", fill: "none"});
      if (r.dot !== undefined && r.dot !== null) this.add("circle", {cx: this.x(r.dot), cy: y + 25, r: 5, fill: "var(--ink)", stroke: "var(--card)"});
      const end = Math.max(this.x(whole), r.range ? this.x(r.range[1]) : 0, r.dot ? this.x(r.dot) + 5 : 0);
      this.text(Math.min(end + 6, this.w - right + 6), y + 30, fmt(whole, s.unit), {class: "tick"});
    });
    if (s.limit) {
      const x = this.x(s.limit.at), half = s.limit.label.length * CHAR;
      this.add("line", {class: "mark", x1: x, x2: x, y1: top, y2: this.h - bottom + 4});
      this.text(Math.max(half, Math.min(x, this.w - 2)), this.h - 6, s.limit.label, {class: "tick", "text-anchor": "end"});
    }
  }
  move(e) {
    const [x, y] = this.point(e), row = this.hits.filter(h => y >= h[2] && y < h[3]);
    const hit = row.find(h => x >= h[0] && x <= h[1]) || row[row.length - 1];
    if (hit) this.show(x, hit[2] + 36, hit[4]); else this.leave();
  }
  key(e) {
    const by = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[e.key];
    if (!by) return;
    this.at = Math.max(0, Math.min(this.hits.length - 1, this.at + by));
    const h = this.hits[this.at];
    this.show((h[0] + h[1]) / 2, h[2] + 36, h[4]);
    e.preventDefault();
  }
}

class Rects extends Chart {
  setup() {
    const s = this.spec;
    this.zoomable();
    if (s.heat !== undefined) {
      // The scale ends where it is told, or at the 98th percentile: one hiccup must not make all else pale.
      const values = s.rects.map(r => r[4]).sort((a, b) => a - b);
      this.low = s.low ?? values[0] ?? 0; this.high = s.high ?? values[Math.ceil(0.98 * (values.length - 1))] ?? 0;
      const most = fmt(this.high, s.heat) + (values.length && values[values.length - 1] > this.high ? " or more" : "");
      this.legend.append(el("span", {}, fmt(this.low, s.heat), el("i", {style: "width:110px;background:linear-gradient(90deg,rgb(var(--low)),rgb(var(--high)))"}), most));
    } else {
      this.colors = colorsOf(s.classes);
      if (s.classes.length > 1) this.toggles(s.classes.map((name, i) => [name, `background:${color(this.colors[i])}`, i]));
    }
  }
  draw() {
    const s = this.spec, lanes = s.y.labels, top = 18, bottom = 34;
    this.begin(lanes ? top + bottom + Math.min(420, Math.max(28, Math.min(90, 260 / lanes.length)) * lanes.length) : 320);
    const rects = s.rects.filter(r => s.heat !== undefined || !this.hidden.has(r[4]));
    let x0 = Infinity, x1 = -Infinity, y1 = -Infinity;
    for (const r of s.rects) { if (r[0] < x0) x0 = r[0]; if (r[1] > x1) x1 = r[1]; if (r[3] > y1) y1 = r[3]; }
    if (s.x.to !== undefined) x1 = Math.max(x1, s.x.to);
    if (!s.rects.length) { this.text(10, 30, "nothing to show", {class: "tick"}); return; }
    if (this.zoom) [x0, x1] = this.zoom;
    let left = 10;
    if (lanes) left = Math.min(this.w * 0.4, 14 + CHAR * Math.max(s.y.room || 0, ...lanes.map(l => l.length)));
    else left = 14 + CHAR * Math.max(...ticks(0, y1, 6).map(t => fmt(t, s.y.unit).length));
    const right = 12;
    this.x = scale(x0, x1, left, this.w - right, s.xlog);
    this.y = lanes ? scale(0, lanes.length, top, this.h - bottom) : scale(0, y1, this.h - bottom, top);
    this.frame(left, right, top, bottom, s.x.unit, s.x.label, s.y.unit, s.y.label, lanes ? [] : undefined);
    if (lanes) {
      const room = Math.floor((left - 10) / CHAR), every = Math.ceil(15 / (this.y(1) - this.y(0)));
      lanes.forEach((l, i) => { if (i % every === 0) this.text(left - 6, this.y(i + 0.5) + 4, l.length > room ? l.slice(0, room - 2) + ".." : l, {class: "tick", "text-anchor": "end"}); });
    }
    const g = this.clip(left, right, top, bottom), paths = new Map(), texts = [];
    const gap = lanes && s.heat === undefined ? 3 : 0;
    for (const r of rects) {
      const a = Math.max(this.x(r[0]), left - 2), b = Math.min(this.x(r[1]), this.w + 2);
      if (b < left || a > this.w) continue;
      const ya = this.y(r[2]), yb = this.y(r[3]), y = Math.min(ya, yb) + gap / 2, h = Math.max(0.5, Math.abs(yb - ya) - gap);
      const w = b - a > 3 && s.heat === undefined ? b - a - 0.7 : Math.max(b - a, 0.4);
      const key = s.heat === undefined ? r[4] : Math.round(24 * (this.high > this.low ? Math.min(1, (r[4] - this.low) / (this.high - this.low)) : 1));
      const text = s.texts ? s.texts[r[5]] : "";
      if (text && w > CHAR * text.length + 3 && h > 12 && a >= left && b <= this.w - right)
        texts.push(svg("text", {x: (a + b) / 2, y: y + h / 2 + 4, "text-anchor": "middle", "data-on": `--c${this.colors[r[4]]}`, style: "fill:var(--paper)"}, text));
      if (!paths.has(key)) paths.set(key, []);
      paths.get(key).push(`M${a.toFixed(1)} ${y.toFixed(1)}h${w.toFixed(1)}v${h.toFixed(1)}h${(-w).toFixed(1)}z`);
    }
    const mix = t => `color-mix(in srgb, rgb(var(--high)) ${Math.round(100 * t)}%, rgb(var(--low)))`;
    for (const [key, d] of paths) g.append(svg("path", {d: d.join(""), style: `fill:${s.heat === undefined ? color(this.colors[key]) : mix(key / 24)}`}));
    g.append(...texts);
    this.cursor = this.add("g", {visibility: "hidden"}, svg("rect", {fill: "none", stroke: "var(--ink)", "stroke-width": 2}));
    this.brush = this.add("rect", {class: "brush", y: top, height: this.h - top - bottom, width: 0});
    this.visible = rects;
  }
  move(e) {
    if (!this.visible || this.stretch(e)) return;
    const [px, py] = this.point(e), x = this.x.invert(px), y = this.y.invert(py), slack = Math.abs(this.x.invert(px + 2) - x);
    let best = -1, least = Infinity;
    this.visible.forEach((r, i) => {
      if (y < r[2] || y > r[3]) return;
      const d = x < r[0] ? r[0] - x : x > r[1] ? x - r[1] : 0;
      if (d < least) { least = d; best = i; }
    });
    if (best >= 0 && least <= slack) this.select(best); else this.leave();
  }
  select(i) {
    const r = this.visible[i], s = this.spec;
    if (!r) return;
    this.at = i;
    const a = Math.max(this.x(r[0]), 0), b = Math.min(this.x(r[1]), this.w), ya = this.y(r[2]), yb = this.y(r[3]);
    const box = this.cursor.firstChild;
    this.cursor.setAttribute("visibility", "visible");
    box.setAttribute("x", a); box.setAttribute("width", Math.max(1, b - a));
    box.setAttribute("y", Math.min(ya, yb)); box.setAttribute("height", Math.max(1, Math.abs(yb - ya)));
    const told = [withCode(s.names[r[5]] || "")];
    if (s.heat !== undefined) told.push(fmt(r[4], s.heat));
    else told.push(`${s.classes[r[4]]}${s.y.unit ? ", " + fmt(r[3] - r[2], s.y.unit) : ""}`);
    if (!s.x.labels) told.push(`${s.x.label} ${fmt(r[0], s.x.unit)} to ${fmt(r[1], s.x.unit)}${s.x.unit === "s" ? ", " + fmt(r[1] - r[0], "s") : ""}`);
    this.show((a + b) / 2, Math.max(ya, yb), told.filter(l => l).join("\n"));
  }
  key(e) {
    if (!this.visible) return;
    if (e.key === "ArrowRight" || e.key === "ArrowLeft") { this.select(Math.max(0, Math.min(this.visible.length - 1, this.at + (e.key === "ArrowRight" ? 1 : -1)))); e.preventDefault(); }
    else if (e.key === "+" || e.key === "=") { const r = this.visible[this.at]; this.zoomBy(0.5, r ? (r[0] + r[1]) / 2 : undefined); }
    else if (e.key === "-") this.zoomBy(2);
    else if (e.key === "0" || e.key === "Escape") this.setZoom(null);
  }
}

// The ranks of a mesh on their hosts. Ranks of one colour are a group along the chosen axis: they talk with each other.
class MeshPicture extends Chart {
  keys() { return "; arrow keys go through the ranks"; }
  setup() {
    const s = this.spec;
    this.axis = s.mesh.length - 1;
    for (let a = 0; a < s.mesh.length; ++a) if (s.mesh[a][1] > 1) this.axis = a;
    const select = el("select", {onchange: e => { this.axis = +e.target.value; this.draw(); }}, ...s.mesh.map(([name, size], a) => el("option", {value: a}, `${name} (${size})`)));
    select.value = this.axis;
    this.controls.append(el("label", {}, "groups along ", select));
    this.about = el("p", {role: "status"});
    this.figure.append(this.about);
  }
  stride(axis) { return this.spec.mesh.slice(axis + 1).reduce((n, a) => n * a[1], 1); }
  // The first rank of the group along the chosen axis, and its number among all groups.
  group(rank) {
    const size = this.spec.mesh[this.axis][1], step = this.stride(this.axis), first = rank - Math.floor(rank / step) % size * step;
    return [first, Math.floor(first / (step * size)) * step + first % step];
  }
  members(rank) { const [first] = this.group(rank), step = this.stride(this.axis); return [...Array(this.spec.mesh[this.axis][1]).keys()].map(i => first + i * step); }
  hostOf(rank) { let at = 0; return this.spec.hosts.findIndex(h => (at += h[1]) > rank); }
  draw() {
    const s = this.spec, most = 1024, gap = 12, cell = [Math.max(30, 10 + CHAR * String(s.hosts.reduce((n, h) => n + h[1], 0)).length), 24], title = 18;
    this.w = this.width();
    const across = Math.max(1, Math.floor((this.w - 18) / cell[0])), boxes = [], hits = [];
    let x = 1, y = 1, tall = 0, rank = 0, shown = 0;
    for (const [name, ranks] of s.hosts) {
      if (rank + ranks > most && boxes.length) break;
      const count = Math.min(ranks, most), columns = Math.min(count, across, count > 8 ? Math.max(8, Math.ceil(Math.sqrt(2 * count))) : 8);
      const wide = Math.max(12 + columns * cell[0], Math.min(16 + name.length * CHAR, this.w - 2)), high = title + 10 + Math.ceil(count / columns) * cell[1];
      if (x > 1 && x + wide > this.w - 1) { x = 1; y += tall + gap; tall = 0; }
      boxes.push([x, y, wide, high, name]);
      for (let i = 0; i < count; ++i) hits.push([x + 6 + i % columns * cell[0], y + title + 6 + Math.floor(i / columns) * cell[1], rank + i]);
      x += wide + gap; tall = Math.max(tall, high); rank += ranks; shown += 1;
    }
    const left = s.hosts.length - shown;
    this.begin(y + tall + (left ? 26 : 6));
    for (const [bx, by, wide, high, name] of boxes) {
      const room = Math.floor((wide - 12) / CHAR);
      this.add("rect", {x: bx, y: by, width: wide, height: high, rx: 4, fill: "var(--paper)", stroke: "var(--rule)"});
      this.text(bx + 6, by + 14, name.length > room ? name.slice(0, Math.max(1, room - 2)) + ".." : name, {class: "tick"});
    }
    this.cells = new Map();
    for (const [cx, cy, r] of hits) {
      const box = this.add("rect", {x: cx + 1, y: cy + 1, width: cell[0] - 3, height: cell[1] - 3, fill: "var(--card)", stroke: "var(--rule)"});
      this.add("rect", {x: cx + 1, y: cy + cell[1] - 7, width: cell[0] - 3, height: 5, fill: color(this.group(r)[1])});
      this.text(cx + cell[0] / 2, cy + 14, String(r), {"text-anchor": "middle"});
      this.cells.set(r, box);
    }
    if (left) this.text(4, this.h - 6, `and ${left} more like these`, {class: "tick"});
    this.hits = hits; this.cell = cell;
    const [axis, size] = s.mesh[this.axis], step = this.stride(this.axis), all = s.mesh.reduce((n, a) => n * a[1], 1);
    const spans = [...Array(Math.min(all, most)).keys()].some(r => this.hostOf(this.group(r)[0]) !== this.hostOf(this.group(r)[0] + (size - 1) * step));
    this.about.textContent = size < 2 ? `${axis} has one rank: nothing is sent along it.` :
      `${all / size === 1 ? "one group" : all / size + " groups"} of ${size} ranks along ${axis}${s.links && s.links[this.axis] ? ", over " + s.links[this.axis] : ""}; ${s.hosts.length === 1 ? "all ranks are together" : spans ? "a group spans several of the boxes" : "a group stays in one box"}.`;
  }
  leave() { super.leave(); this.mark([]); }
  mark(ranks) { if (this.cells) this.cells.forEach((box, r) => { const on = ranks.includes(r); box.setAttribute("stroke", on ? "var(--ink)" : "var(--rule)"); box.setAttribute("stroke-width", on ? 2 : 1); }); }
  move(e) {
    const [x, y] = this.point(e), [w, h] = this.cell;
    const at = this.hits.findIndex(c => x >= c[0] && x < c[0] + w && y >= c[1] && y < c[1] + h);
    if (at >= 0) this.select(at); else this.leave();
  }
  select(i) {
    const [x, y, r] = this.hits[i], s = this.spec, members = this.members(r), host = s.hosts[this.hostOf(r)];
    this.at = i;
    this.mark(members);
    const where = s.mesh.map(([name, size], a) => `${name} ${Math.floor(r / this.stride(a)) % size}`).join(", ");
    this.show(x + this.cell[0] / 2, y + this.cell[1], `rank ${r}: ${where}\n${host ? host[0] : ""}\nwith ranks ${members.slice(0, 24).join(", ")}${members.length > 24 ? ", ..." : ""} along ${s.mesh[this.axis][0]}`);
  }
  key(e) {
    const by = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[e.key];
    if (!by) return;
    this.select(Math.max(0, Math.min(this.hits.length - 1, this.at + by)));
    e.preventDefault();
  }
}

// A tensor cut over the mesh: rows are the slices of its first split dim, columns those of the others.
class Cut extends Chart {
  keys() { return "; arrow keys go through the slices"; }
  setup() {
    const s = this.spec;
    this.now = s.tensors.find(t => t.dims.some(d => d[3].length)) || s.tensors[0];
    const select = el("select", {"aria-label": "tensor", onchange: e => { this.now = s.tensors[+e.target.value]; this.draw(); }});
    const list = text => {
      const words = text.toLowerCase().split(/\s+/).filter(w => w);
      const found = s.tensors.map((t, i) => [t, i]).filter(([t]) => { const line = `${t.name} ${t.kind} ${t.made}`.toLowerCase(); return words.every(w => line.includes(w)); }).slice(0, 500);
      select.replaceChildren(...found.map(([t, i]) => el("option", {value: i}, `${t.name} (${t.kind === "activation" ? t.made : t.kind})`)));
      if (text && found.length) { this.now = found[0][0]; }
      select.value = String(s.tensors.indexOf(this.now));
    };
    list("");
    select.style.maxWidth = "100%";
    this.controls.append(el("label", {}, "find ", el("input", {type: "search", placeholder: "w1, all_reduce", oninput: e => { list(e.target.value); this.draw(); }})), select);
    this.axis = Object.fromEntries(s.mesh.map(([name], i) => [name, i]));
    this.marks(s.mesh.map(([name, size], i) => [`${name} (${size})`, `background:${color(i)}`]));
    this.about = el("p", {role: "status"});
    this.figure.append(this.about);
  }
  size(axis) { return this.spec.mesh[this.axis[axis]][1]; }
  // The ranks of a slice: `at` has the coordinates of the axes that cut.
  ranks(at) {
    const mesh = this.spec.mesh;
    let list = [0];
    mesh.forEach(([name, size]) => {
      const next = [];
      for (const r of list) { if (name in at) next.push(r * size + at[name]); else for (let i = 0; i < size && next.length < 4096; ++i) next.push(r * size + i); }
      list = next;
    });
    return list;
  }
  side(dims) {
    const axes = [].concat(...dims.map(d => d[3])), count = axes.reduce((n, a) => n * this.size(a), 1), most = 8;
    let shown = [...Array(Math.min(count, count > most ? most - 2 : most)).keys()];
    if (count > most) shown = shown.concat([-1, count - 1]);
    const at = n => { const c = {}; for (let i = axes.length; i-- > 0;) { c[axes[i]] = n % this.size(axes[i]); n = Math.floor(n / this.size(axes[i])); } return c; };
    return {dims, axes, count, shown, at};
  }
  draw() {
    const t = this.now;
    if (!t) { this.begin(30); this.text(10, 20, "no tensor"); return; }
    this.w = this.width();
    const cut = t.dims.filter(d => d[3].length), rows = this.side(cut.slice(0, 1)), cols = this.side(cut.slice(1));
    const strip = 9, used = new Set([...rows.axes, ...cols.axes, ...t.partial]);
    const copies = this.spec.mesh.filter(([a, n]) => n > 1 && !used.has(a)), behind = copies.length ? 12 : 0;
    const left = 8 + strip * rows.axes.length, top = 26 + strip * cols.axes.length, wide = Math.min(720, this.w - left - behind - 8);
    const cell = Math.max(26, Math.min(54, 260 / rows.shown.length));
    const tall = cell * rows.shown.length, cw = wide / cols.shown.length;
    this.begin(top + tall + behind + 26);
    const name = d => `${d[0]} ${d[1]}${d[2] > d[1] ? ` (padded to ${d[2]})` : ""}${d[3].length ? " over " + d[3].join("+") : ""}`;
    const clipText = (text, width) => text.length * CHAR > width ? text.slice(0, Math.max(1, Math.floor(width / CHAR) - 2)) + ".." : text;
    if (cols.dims.length) this.text(left, 14, clipText("across: " + cols.dims.map(name).join(", "), this.w - left - 4), {class: "tick"});
    this.text(left, this.h - 6, clipText(rows.dims.length ? "down: " + rows.dims.map(name).join(", ") : "not split: every rank has the whole tensor", this.w - left - 4), {class: "tick"});
    const hatch = "hatch" + (Chart.count = (Chart.count || 0) + 1);
    this.add("pattern", {id: hatch, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"}, svg("rect", {width: 1.6, height: 6, fill: "var(--quiet)", opacity: 0.55}));
    const sums = "sums" + Chart.count, sumColor = t.partial.length ? color(this.axis[t.partial[0]]) : "";
    this.add("pattern", {id: sums, width: 7, height: 7, patternUnits: "userSpaceOnUse"}, svg("circle", {cx: 2, cy: 2, r: 1, fill: sumColor || "none", opacity: 0.8}));
    copies.slice(0, 2).forEach(([a], i) => { const by = 6 * (Math.min(copies.length, 2) - i); this.add("rect", {x: left + by, y: top + by, width: wide, height: tall, fill: "var(--card)", stroke: color(this.axis[a]), "stroke-width": 2}); });
    this.add("rect", {x: left, y: top, width: wide, height: tall, fill: "var(--paper)", stroke: "var(--ink)"});
    cols.axes.forEach((a, k) => cols.shown.forEach((n, i) => { if (n >= 0) this.strip(left + i * cw, 20 + k * strip, cw, strip, a, cols.at(n)[a]); }));
    rows.axes.forEach((a, k) => rows.shown.forEach((n, i) => { if (n >= 0) this.strip(4 + k * strip, top + i * cell, strip, cell, a, rows.at(n)[a]); }));
    this.hits = [];
    rows.shown.forEach((r, i) => cols.shown.forEach((c, j) => {
      const x = left + j * cw, y = top + i * cell, gap = r < 0 || c < 0;
      const at = gap ? {} : Object.assign(rows.at(r), cols.at(c)), ranks = gap ? [] : this.ranks(at);
      this.add("rect", {x, y, width: cw, height: cell, fill: t.partial.length ? `url(#${sums})` : "none", stroke: "var(--rule)"});
      const long = ranks.length > 4 ? `${ranks[0]}, ${ranks[1]}, ... ${ranks[ranks.length - 1]}` : ranks.join(", ");
      const label = gap ? "..." : [(ranks.length > 1 ? "ranks " : "rank ") + long, long, ranks[0] + "..", ""].find(l => l.length * CHAR < cw - 4);
      if (label) {
        if (t.partial.length) this.add("rect", {x: x + cw / 2 - label.length * CHAR / 2 - 3, y: y + cell / 2 - 9, width: label.length * CHAR + 6, height: 18, fill: "var(--paper)"});
        this.text(x + cw / 2, y + cell / 2 + 4, label, {"text-anchor": "middle"});
      }
      if (!gap) this.hits.push([x, y, cw, cell, t.dims.map(d => { const p = this.part(d, at); return `${d[0]} ${p[0]} to ${p[1] - 1}`; }).join(", ") + `\n${ranks.length === 1 ? "rank" : "ranks"} ${ranks.slice(0, 40).join(", ")}${ranks.length > 40 ? ", ..." : ""}` + (t.partial.length ? `\npartial ${t.combiner} over ${t.partial.join("+")}` : "")]);
    }));
    // Padding lies at the end of a dim. With several dims on a side it is only told.
    const pad = (d, side, down) => {
      if (!d || d[2] <= d[1] || side.dims.length > 1 || side.count > 8) return;
      const share = (d[2] - d[1]) / d[2];
      this.add("rect", {x: down ? left : left + wide * (1 - share), y: down ? top + tall * (1 - share) : top, width: down ? wide : wide * share, height: down ? tall * share : tall, fill: `url(#${hatch})`});
    };
    pad(rows.dims[0], rows, true); pad(cols.dims[0], cols, false);
    const whole = t.dims.filter(d => !d[3].length).map(d => `${d[0]} ${d[1]}`);
    this.about.textContent = [`${t.dtype}, ${t.kind === "activation" ? `made by ${t.made}` : t.kind}${t.source ? " at " + t.source + (code(t.source) ? `, ${code(t.source).line}` : "") : ""}; ${fmt(t.bytes, "B")} on each rank`,
      whole.length ? "whole on each rank: " + whole.join(", ") : "",
      copies.length ? `${copies.reduce((n, a) => n * a[1], 1)} copies, along ${copies.map(a => a[0]).join(" and ")}` : "",
      t.partial.length ? `dotted: partial ${t.combiner} over ${t.partial.join("+")}; the value is the ${t.combiner} of what these ranks hold` : "",
      t.dims.some(d => d[2] > d[1]) ? "hatched: padding, " + t.dims.filter(d => d[2] > d[1]).map(d => `${d[0]} ${d[1]} to ${d[2]}`).join(", ") : ""].filter(x => x).join("; ") + ".";
    this.cursor = this.add("g", {visibility: "hidden"}, svg("rect", {fill: "none", stroke: "var(--ink)", "stroke-width": 2.5}));
  }
  strip(x, y, w, h, axis, index) { this.add("rect", {x: x + 0.5, y: y + 0.5, width: Math.max(1, w - 1), height: Math.max(1, h - 1), fill: color(this.axis[axis]), opacity: index % 2 ? 0.55 : 1}); }
  part(d, at) {
    let parts = 1, n = 0;
    for (const a of d[3]) { n = n * this.size(a) + at[a]; parts *= this.size(a); }
    const size = d[2] / parts;
    return [Math.min(d[1], n * size), Math.min(d[1], (n + 1) * size)];
  }
  move(e) {
    const [x, y] = this.point(e);
    this.select((this.hits || []).findIndex(h => x >= h[0] && x <= h[0] + h[2] && y >= h[1] && y <= h[1] + h[3]));
  }
  select(i) {
    const h = this.hits[i];
    if (!h) return this.leave();
    this.at = i;
    const box = this.cursor.firstChild;
    this.cursor.setAttribute("visibility", "visible");
    ["x", "y", "width", "height"].forEach((k, n) => box.setAttribute(k, h[n]));
    this.show(h[0] + h[2] / 2, h[1] + h[3], h[4]);
  }
  key(e) {
    const by = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[e.key];
    if (!by || !this.hits) return;
    this.select(Math.max(0, Math.min(this.hits.length - 1, this.at + by)));
    e.preventDefault();
  }
}

// ---- tables

function sorting(table) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  heads.forEach((th, c) => {
    const button = el("button", {type: "button"}, th.textContent);
    th.replaceChildren(button);
    button.addEventListener("click", () => {
      const numbers = th.classList.contains("n"), up = th.getAttribute("aria-sort") ? th.getAttribute("aria-sort") === "descending" : !numbers;
      heads.forEach(h => h.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = r => numbers ? (r.cells[c].dataset.v === undefined ? NaN : +r.cells[c].dataset.v) : r.cells[c].textContent;
      rows.sort((a, b) => {
        const x = value(a), y = value(b);
        if (!numbers) return (up ? 1 : -1) * x.localeCompare(y, "en", {numeric: true});
        return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : (up ? 1 : -1) * (x - y);  // "-" comes last
      });
      body.replaceChildren(...rows);
    });
  });
  if (rows.length <= 8) return;
  const count = el("output", {}, `${rows.length} rows`);
  const filter = el("input", {type: "search", oninput: e => {
    const words = e.target.value.toLowerCase().split(/\s+/).filter(w => w);
    let shown = 0;
    for (const r of rows) { const text = r.textContent.toLowerCase(); r.hidden = !words.every(w => text.includes(w)); shown += !r.hidden; }
    count.textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
  }});
  table.parentNode.before(el("div", {class: "filter"}, el("label", {}, "filter ", filter), count));
}

// Places in code open: first the line alone, then those around it.
for (const cell of document.querySelectorAll("td.at")) {
  const place = cell.textContent, found = code(place);
  if (!found) continue;
  const around = el("pre", {}), box = el("details", {ontoggle: () => { around.textContent = box.open ? found.around : ""; }},
    el("summary", {}, place, el("code", {}, found.line)), around);
  cell.replaceChildren(box);
}
for (const table of document.querySelectorAll("table.sorts")) sorting(table);
for (const box of document.querySelectorAll(".command")) {
  const code = box.firstChild;
  box.append(el("button", {type: "button", onclick: e => {
    const button = e.currentTarget, done = () => { button.textContent = "copied"; setTimeout(() => { button.textContent = "copy"; }, 1500); };
    const mark = () => { const r = document.createRange(); r.selectNodeContents(code); const s = getSelection(); s.removeAllRanges(); s.addRange(r); document.execCommand("copy"); done(); };
    if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, mark); else mark();
  }}, "copy"));
}
const kinds = {xy: XY, bars: Bars, rects: Rects, mesh: MeshPicture, cut: Cut};
for (const data of document.querySelectorAll('figure > script[type="application/json"]')) {
  const spec = JSON.parse(data.textContent);
  charts.push(new kinds[spec.kind](data.parentNode, spec));
}
document.documentElement.dataset.ready = "yes";
})();
