"""Prints a table of what sweep_hosts left, a row a rate: sweep_hosts.py OUT RATE..."""
import csv
import itertools
import json
import pathlib
import re
import sys

out, rates = pathlib.Path(sys.argv[1]), sys.argv[2:]


def kendall(points):
    pairs = [(a, b) for a, b in itertools.combinations(points, 2) if max(a[1], b[1]) > 1.05 * min(a[1], b[1])]
    agree = sum(1 if (a[0] < b[0]) == (a[1] < b[1]) else -1 for a, b in pairs)
    return agree / len(pairs) if pairs else 1.0


def short(rules):
    """Storage rules of all parameters as the stage of ZeRO that they are."""
    parts = [r for r in rules.split(";") if r != "batch:-" and not re.match(r"@(state|grads|params)/", r)]
    stage = max((n for n, purpose in ((1, "@state/"), (2, "@grads/"), (3, "@params/")) if purpose in rules), default=0)
    return ";".join(parts) + (f", ZeRO-{stage}" if stage else "")


rows, choices = {}, {}
for rate in rates:
    with (out / f"{rate}.csv").open() as file:
        rows[rate] = {short(r["layout"]): (float(r["predicted_s"]), float(r["measured_s"])) for r in csv.DictReader(file) if not r["failure"]}
    choices[rate] = short(json.loads((out / f"{rate}.plan.json").read_text())["best"]["layout"])
shown = {layout for found in rows.values() for layout, _ in sorted(found.items(), key=lambda x: x[1][1])[:3]} | set(choices.values())
print("| layout | " + " | ".join(f"{rate}: measured (predicted) ms" for rate in rates) + " |\n|" + "---|" * (len(rates) + 1))
for layout in sorted(shown):
    cells = []
    for rate in rates:
        found = rows[rate].get(layout)
        text = f"{1e3 * found[1]:.1f} ({1e3 * found[0]:.1f})" if found else "not run"
        cells.append(f"**{text}**" if layout == choices[rate] else text)
    print(f"| `{layout or '(nothing split)'}` | " + " | ".join(cells) + " |")
for rate in rates:
    best = min(m for _, m in rows[rate].values())
    error = sum(abs(p / m - 1) for p, m in rows[rate].values()) / len(rows[rate])
    chosen = rows[rate].get(choices[rate])
    slower = f"{100 * (chosen[1] / best - 1):.1f} % slower than the fastest" if chosen else "not run"
    print(f"{rate}: chosen `{choices[rate] or '(nothing split)'}`, {slower} of {len(rows[rate])}; predictions: "
          f"error {100 * error:.1f} %, rank correlation {kendall(list(rows[rate].values())):.2f}")
