"""scripts/results refuses what is not as it should be, in one line that names the file, the row and the remedy."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def results(folder, *words):
    done = subprocess.run([sys.executable, ROOT / "scripts/results", "--folder", folder, *words], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def changed(folder, name, change):
    path = folder / "results" / name
    file = json.loads(path.read_text())
    change(file)
    path.write_text(json.dumps(file))


def first_row(file):
    return file["runs"][0]["rows"][0]


MISTAKES = {
    "a row without a field": (lambda f: changed(f, "cosma.json", lambda j: first_row(j).pop("unit")),
                              r'results: cosma\.json, run 1, row 1: has no "unit"; add it, or null if it is not known'),
    "a run without a field": (lambda f: changed(f, "cosma.json", lambda j: j["runs"][0].pop("date")),
                              r'results: cosma\.json, run 1: has no "date"; add it.*'),
    "a date in another form": (lambda f: changed(f, "cosma.json", lambda j: j["runs"][0].update(date="yesterday")),
                               r'results: cosma\.json, run 1: "date" is not a date as 2026-11-30 or null; correct it'),
    "a field that is none": (lambda f: changed(f, "cosma.json", lambda j: first_row(j).update(note="fast")),
                             r'results: cosma\.json, run 1, row 1: "note" is no field; remove it, .*'),
    "a row that measures nothing": (lambda f: changed(f, "cosma.json", lambda j: first_row(j).update(value=None, ratio=None)),
                                    r'results: cosma\.json, run 1, row 1: has neither a "value" nor a "ratio"; .*'),
    "a claim that is there twice": (lambda f: changed(f, "cosma.json", lambda j: j["runs"].append(j["runs"][0])),
                                    r"results: cosma\.json, run 2, row 1: claims again 'A matmul of 2048\^3 .*'; keep the newer one"),
    "an area that is none": (lambda f: changed(f, "cosma.json", lambda j: j["runs"][0].update(area="sport")),
                             r"results: cosma\.json, run 1: \"area\" is 'sport'; take one of training, .*"),
    "a file with another name": (lambda f: shutil.move(f / "results/fuzz.json", f / "results/fuzzing.json"),
                                 r'results: fuzzing\.json: is not {"benchmark": "fuzzing", "runs": \[\.\.\.\]}; correct it'),
    "an aim of an unknown benchmark": (lambda f: changed(f, "aims.json", lambda j: j["rows"][2].update(benchmark="cosmos")),
                                       r"results: aims\.json, row 3: there is no benchmark 'cosmos'; name a file of the folder, or add it"),
    "no JSON": (lambda f: (f / "results/cosma.json").write_text("{"), r"results: cosma\.json: is no JSON \(.*\); correct it"),
    "a page edited by hand": (lambda f: (f / "RESULTS.md").write_text((f / "RESULTS.md").read_text().replace("| yes |", "| no |", 1)),
                              r"results: RESULTS\.md:13: is not what results/\*\.json say; change those, then run scripts/results"),
    "a measurement that is not in the page": (lambda f: changed(f, "cosma.json", lambda j: first_row(j).update(ratio=2)),
                                              r"results: RESULTS\.md:\d+: is not what results/\*\.json say; .*"),
}

code, output = results(ROOT / "benchmarks", "--check")
if code != 0 or not re.fullmatch(r"results: ok \(\d+ benchmarks\)\n", output):
    sys.exit(f"results_test: the files of the repository are refused\n{output}")
for what, (make, expected) in MISTAKES.items():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(ROOT / "benchmarks/results", folder / "results")
        shutil.copy(ROOT / "benchmarks/RESULTS.md", folder)
        make(folder)
        code, output = results(folder, "--check")
        if code != 1 or not re.fullmatch(expected + "\n", output):
            sys.exit(f"results_test: {what}: status {code}, expected 1 and '{expected}'\n{output}")
        if "RESULTS" in expected and (results(folder)[0] or results(folder, "--check")[0]):
            sys.exit(f"results_test: {what}: scripts/results does not write the page that --check wants")
print(f"results: ok ({len(MISTAKES)} mistakes)")
