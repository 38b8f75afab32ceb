"""Commands that print lines of JSON, run by turns: what else the machine does meets all of them."""
import json
import os
import statistics
import subprocess
import sys


def lines(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {(done.stderr.strip() or 'no output').splitlines()[-1]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def by_turns(commands, rounds, key):
    """{peer: {row: [ms of each round]}}, where key(line) is the row; and the load averages before the rounds."""
    result, loads = {name: {} for name in commands}, []
    for number in range(rounds):
        loads.append(os.getloadavg()[0])
        for name, command in commands.items():
            for line in lines(command):
                result[name].setdefault(key(line), []).append(line["ms"])
            print(f"round {number + 1}: {name}", file=sys.stderr)
    return result, loads


def table(result, ours, theirs, loads, what):
    """Rows of medians with the least and the most, and how many times as fast ours is."""
    text = [f"| {what} | Tessera, ms | peer, ms | ours is as fast |", "|---|---|---|---|"]
    for row, ms in result[ours].items():
        other = result[theirs].get(row)
        if not other:
            continue
        show = lambda v: f"{statistics.median(v):.4g} ({min(v):.4g} to {max(v):.4g})"
        text.append(f"| {row} | {show(ms)} | {show(other)} | {statistics.median(other) / statistics.median(ms):.2f} times |")
    text.append(f"\nload average before the rounds: {', '.join(f'{l:.1f}' for l in loads)}")
    return "\n".join(text)
