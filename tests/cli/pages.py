#!/usr/bin/env python3
"""Opens pages in a headless browser, narrow and wide, light and dark, and uses them.

    tests/cli/pages.py PAGE.html ...

Prints what is wrong, a line each; exits with 1 if anything is, and with 77 if there is no Chromium.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import browser as browsers  # noqa: E402

# Texts as boxes: in the page, inside of their picture, apart from each other, and dark enough on what is behind them.
LOOK = r"""
(() => {
  const bad = [], name = n => JSON.stringify(n.slice(0, 60));
  if (document.documentElement.dataset.ready !== "yes") bad.push("the script did not run to its end");
  if (document.documentElement.scrollWidth > innerWidth) bad.push(`the page is ${document.documentElement.scrollWidth} wide`);
  const channel = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const parse = c => (c.match(/[\d.]+/g) || []).map(Number);
  const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const behind = e => {
    for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; }
    return [255, 255, 255];
  };
  const boxes = [];
  const probe = document.body.appendChild(document.createElement("i"));
  const named = name => { probe.style.color = `var(${name})`; return parse(getComputedStyle(probe).color); };
  const see = (box, text, element, color, group, on) => {
    if (box.width < 1 || box.height < 1) return;
    if (group) boxes.push({box, text, group});
    const a = light(parse(color)), b = light(on ? named(on) : behind(element)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`contrast ${ratio.toFixed(2)} of ${name(text)}`);
  };
  for (const plot of document.querySelectorAll("svg.plot")) {
    const out = plot.getBoundingClientRect();
    for (const t of plot.querySelectorAll("text")) {
      const b = t.getBoundingClientRect();
      see(b, t.textContent, plot, getComputedStyle(t).fill, plot, t.dataset.on);
      if (b.left < out.left - 1 || b.right > out.right + 1 || b.top < out.top - 2 || b.bottom > out.bottom + 2)
        bad.push(`clipped by its picture: ${name(t.textContent)} in ${name(plot.getAttribute("aria-label"))}`);
    }
  }
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = walk.nextNode());) {
    const e = n.parentElement;
    if (!n.data.trim() || e.closest("svg, script, style, select, option, [hidden]")) continue;
    const range = document.createRange();
    range.selectNodeContents(n);
    // What is scrolled away has a box too. Paper does not scroll.
    const scrolled = matchMedia("print").matches ? null : e.closest(".table, .command");
    for (const b of range.getClientRects()) {
      see(b, n.data.trim(), e, getComputedStyle(e).color, scrolled ? null : document.body);
      if (!scrolled && (b.left < -1 || b.right > innerWidth + 1)) bad.push(`out of the page: ${name(n.data.trim())}`);
    }
  }
  probe.remove();
  boxes.sort((a, b) => a.box.top - b.box.top);
  boxes.forEach((a, i) => {
    for (let k = i + 1; k < boxes.length && boxes[k].box.top < a.box.bottom - 2; ++k) {
      const b = boxes[k];
      const w = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left), h = Math.min(a.box.bottom, b.box.bottom) - b.box.top;
      if (a.group === b.group && w > 1.5 && h > 3) bad.push(`${name(a.text)} lies over ${name(b.text)}`);
    }
  });
  for (const f of document.querySelectorAll("figure > .controls, figure > .legend, nav, .cards"))
    if (f.scrollWidth > f.clientWidth + 1) bad.push(`too wide: ${name(f.textContent)}`);
  return [...new Set(bad)].slice(0, 12);
})()
"""

# Every table sorts both ways by its first column of numbers, and filters.
TABLES = r"""
(() => {
  const bad = [];
  for (const table of document.querySelectorAll("table.sorts")) {
    const heads = [...table.tHead.rows[0].cells], c = heads.findIndex(h => h.classList.contains("n"));
    const rows = () => [...table.tBodies[0].rows];
    if (c >= 0) for (const way of ["descending", "ascending"]) {
      heads[c].querySelector("button").click();
      const v = rows().map(r => r.cells[c].dataset.v).filter(x => x !== undefined).map(Number);
      if (heads[c].getAttribute("aria-sort") !== way) bad.push(`sorts ${heads[c].getAttribute("aria-sort")}, not ${way}`);
      if (v.some((x, i) => i && (way === "ascending" ? v[i - 1] > x : v[i - 1] < x))) bad.push(`not ${way}: ${heads[c].textContent}`);
    }
    const box = table.parentNode.previousElementSibling;
    const filter = box && box.className === "filter" ? box.querySelector("input") : null;
    if (rows().length > 8 && !filter) bad.push("a long table has no filter");
    if (!filter) continue;
    const ask = text => { filter.value = text; filter.dispatchEvent(new Event("input")); return rows().filter(r => !r.hidden).length; };
    const word = rows()[0].cells[0].textContent;
    const all = rows().length, some = ask(word), none = ask("no such text");
    if (!(some >= 1 && some <= all) || none !== 0 || ask("") !== all) bad.push(`filters ${all} rows to ${some} and ${none}`);
  }
  return bad;
})()
"""

# Places in code open, if the page has code: the line itself, then those around it.
CODE = r"""
(() => {
  const bad = [], cells = [...document.querySelectorAll("td.at")], known = document.getElementById("code");
  if (!known || !cells.length) return bad;
  const boxes = cells.map(c => c.querySelector("details")).filter(b => b);
  if (!boxes.length) bad.push("no source is shown");
  for (const box of boxes.slice(0, 3)) {
    box.open = true;
    box.dispatchEvent(new Event("toggle"));
    const line = box.querySelector("code").textContent, around = box.querySelector("pre").textContent;
    if (!line || !around.split("\n").some(l => l.startsWith(">") && l.endsWith(line.trim()))) bad.push(`no code at ${box.textContent.slice(0, 60)}`);
    box.open = false;
  }
  return bad;
})()
"""

# A curve of one value is a dot; a heat map says if values lie beyond its colours; a name has one colour in all bars and
# time lines of a page, and there are no two of them with the same in one.
CURVES = r"""
(() => {
  const bad = [], colors = new Map();
  for (const f of document.querySelectorAll("figure")) {
    const kind = JSON.parse(f.querySelector("script").textContent).kind, here = new Set();
    if (kind !== "bars" && kind !== "rects") continue;
    for (const swatch of f.querySelectorAll(".legend i")) {
      const name = swatch.parentElement.textContent, color = swatch.style.background;
      if (!color.startsWith("var(--c")) continue;
      if ((colors.get(name) || color) !== color) bad.push(`two colours of ${name}`);
      if (here.has(color)) bad.push(`${name} has the colour of another`);
      colors.set(name, color);
      here.add(color);
    }
  }
  for (const f of document.querySelectorAll("figure")) {
    const s = JSON.parse(f.querySelector("script").textContent), dots = f.querySelectorAll("svg.plot circle:not([fill='var(--ink)'])").length;
    const single = s.kind === "xy" ? s.series.filter(c => !c.points && c.y.filter(v => v !== null).length === 1).length : 0;
    if (dots < single) bad.push(`${single} curves of one value, ${dots} dots: ${s.title}`);
    const beyond = s.heat !== undefined && s.high !== undefined && s.rects.some(r => r[4] > s.high);
    if (beyond !== / or more/.test(f.querySelector(".legend")?.textContent || "")) bad.push(`what is beyond the colours: ${s.title}`);
  }
  return bad;
})()
"""

PLOTS = "[...document.querySelectorAll('svg.plot')]"
FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


# Where the mouse goes over a chart, as shares of its width and height: the middles of its largest boxes, whose places follow
# the numbers (all of a colour are one path), then a grid, for charts of other marks.
PLACES = r"""
plot => {
  const out = plot.getBoundingClientRect(), to = plot.getScreenCTM();
  const boxes = [...plot.querySelectorAll("path")].flatMap(p => [...(p.getAttribute("d") || "").matchAll(/M([-\d.]+) ([-\d.]+)h([-\d.]+)v([-\d.]+)/g)])
    .map(m => m.slice(1).map(Number)).sort((a, b) => b[2] * b[3] - a[2] * a[3]).slice(0, 8);
  const places = boxes.map(([x, y, w, h]) => new DOMPoint(x + w / 2, y + h / 2).matrixTransform(to))
    .map(p => [(p.x - out.left) / out.width, (p.y - out.top) / out.height]);
  for (const x of [0.5, 0.3, 0.1, 0.7, 0.04]) for (const y of [0.5, 0.3, 0.75, 0.86, 0.9]) places.push([x, y]);
  return places;
}
"""


def use_charts(b):
    """Hovers over every chart, goes through it by keys, and zooms where that is possible."""
    bad = []
    for i in range(b.evaluate(f"{PLOTS}.length")):
        title = b.evaluate(f"{PLOTS}[{i}].getAttribute('aria-label')")
        box = b.evaluate(f"(() => {{ const p = {PLOTS}[{i}]; p.scrollIntoView({{block: 'center'}}); const r = p.getBoundingClientRect();"
                         "return [r.left, r.top, r.width, r.height]; })()")
        tip = f"(() => {{ const t = {PLOTS}[{i}].parentNode.querySelector('.tip'); return t.hidden ? '' : t.textContent; }})()"
        seen = ""
        for x, y in b.evaluate(f"({PLACES})({PLOTS}[{i}])"):
            b.mouse("mouseMoved", box[0] + box[2] * x, box[1] + box[3] * y)
            seen = seen or b.evaluate(tip)
        b.evaluate(f"{PLOTS}[{i}].focus()")
        b.key("ArrowRight")
        by_key = b.evaluate(tip)
        empty = b.evaluate(f"/no values|nothing to show|no tensor/.test({PLOTS}[{i}].textContent)")
        if not empty and not (seen and any(c.isdigit() for c in seen)):
            bad.append(f"hover shows nothing: {title}")
        if not empty and not by_key:
            bad.append(f"the arrow key shows nothing: {title}")
        zoom = f"{PLOTS}[{i}].parentNode.querySelector('.controls > button')"
        if not empty and b.evaluate(f"!!{zoom}"):
            y = box[1] + box[3] / 2
            b.mouse("mousePressed", box[0] + box[2] * 0.45, y, "left")
            b.mouse("mouseMoved", box[0] + box[2] * 0.6, y)
            b.mouse("mouseReleased", box[0] + box[2] * 0.7, y, "left")
            if b.evaluate(f"{zoom}.hidden"):
                bad.append(f"does not zoom: {title}")
            b.evaluate(f"{zoom}.click()")
            if not b.evaluate(f"{zoom}.hidden"):
                bad.append(f"does not zoom out: {title}")
    return bad


# Controls: each changes the picture.
CONTROLS = r"""
(() => {
  const bad = [];
  for (const f of document.querySelectorAll("figure")) {
    const plot = f.querySelector("svg.plot"), draw = () => plot.innerHTML.replace(/(clip|hatch|sums)\d+/g, "");
    const change = (what, act) => { const before = draw(); act(); if (draw() === before) bad.push(`${what} changes nothing: ${plot.getAttribute("aria-label")}`); };
    if (/no values|nothing to show/.test(plot.textContent)) continue;
    const range = f.querySelector("input[type=range]"), box = f.querySelector("input[type=checkbox]"), by = f.querySelector(".controls select:not([aria-label])");
    const line = plot.querySelector("path.line");
    if (range && line && (line.getAttribute("d").match(/L/g) || []).length > 3)
      change("smoothing", () => { range.value = 90; range.dispatchEvent(new Event("input")); });
    if (box) change("log scale", () => box.click());
    if (by && by.options.length > 1) change("the axis", () => { by.value = [...by.options].map(o => o.value).find(v => v !== by.value); by.dispatchEvent(new Event("change")); });
    const toggle = f.querySelector(".legend button");
    if (toggle) change("the legend", () => toggle.click());
    const find = f.querySelector(".controls input[type=search]");
    if (find) {
      const list = f.querySelector("select"), last = list.options[list.options.length - 1];
      const value = last.value, name = last.textContent.split(" ")[0];
      find.value = name; find.dispatchEvent(new Event("input"));
      if (![...list.options].some(o => o.value === value) || list.selectedOptions[0].textContent.split(" ")[0].indexOf(name) < 0)
        bad.push(`does not find ${name}`);
      const about = f.querySelector("p[role=status]").textContent;
      find.value = "no such tensor"; find.dispatchEvent(new Event("input"));
      if (list.options.length || f.querySelector("p[role=status]").textContent !== about) bad.push("finds what is not there");
    }
  }
  return bad;
})()
"""


PAPER = 717  # the width of A4 within its margins, in pixels of CSS


def check_paper(b, path):
    b.open(path, PAPER, dark=True, media="print")
    b.evaluate(FRAME)
    yield from (f"{path}, printed: {line}" for line in b.evaluate(LOOK))
    b.open(path, 1600)
    before = b.evaluate("document.querySelector('svg.plot') ? document.querySelector('svg.plot').getAttribute('viewBox') : ''")
    if not b.pdf().startswith(b"%PDF"):
        yield f"{path}: no PDF"
    b.evaluate(FRAME)
    if before != b.evaluate("document.querySelector('svg.plot') ? document.querySelector('svg.plot').getAttribute('viewBox') : ''"):
        yield f"{path}: the charts stay as they were printed"


def check_page(b, path):
    for width in (400, 1200, 1600):
        for dark in (False, True):
            b.open(path, width, dark)
            b.evaluate(FRAME)
            where = f"{path}, {width}, {'dark' if dark else 'light'}"
            yield from (f"{where}: {line}" for line in b.evaluate(LOOK))
            yield from (f"{where}: {line}" for line in b.problems)
    b.open(path, 1000)
    b.evaluate(FRAME)
    yield from (f"{path}: {line}" for line in b.evaluate(TABLES) + b.evaluate(CODE) + b.evaluate(CURVES) + use_charts(b) + b.evaluate(CONTROLS))
    yield from (f"{path}: {line}" for line in b.problems)


def main():
    if not browsers.find():
        print("there is no Chromium")
        return 77
    wrong = []
    with browsers.Browser() as b:
        for path in sys.argv[1:]:
            wrong += [*check_page(b, path), *check_paper(b, path)]
    print("\n".join(wrong) or f"{len(sys.argv) - 1} pages are fine")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
