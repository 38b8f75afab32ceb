"""The tutorial runs, and what is public has types that a checker knows."""
import os
import pathlib
import re
import subprocess
import sys

import nbclient
import nbformat
import tessera as ts

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_tutorial_runs():
    notebook = nbformat.read(ROOT / "docs/tutorial/python.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    printed = [
        "".join(output.get("text", "") or str(output.get("data", {}).get("text/html", "")) for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    assert re.search(r"did you mean 'cols'\? \(In\[3\]:3\)", printed[2])
    assert re.search(r"In\[4\]:\d+", printed[6])
    first, last = map(float, re.search(r"([\d.]+) -> ([\d.]+)", printed[4]).groups())
    assert last < first - 1
    for line in printed[5].splitlines():
        alone, split = map(float, line.split())
        assert abs(alone - split) < 1e-4
    assert "all_reduce" in printed[6] and "<table>" in printed[6] and "<table>" in printed[7]
    assert ": ok" in printed[8] and "step 60" in printed[9]


WRONG = '''
import numpy as np
import tessera as ts
n, m = ts.dims(n=8, m=3)

@ts.program
def mean_of(x: ts.f32[n, m]):
    return ts.mean(x)

run = mean_of.compile(mesh="a:2", layout="n:a")
run(x=np.zeros((8, 4), np.float32))  # wrong
'''


def test_a_printed_traceback_ends_in_the_users_line(tmp_path):
    script = tmp_path / "wrong.py"
    script.write_text(WRONG)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    files = [line for line in done.stderr.splitlines() if line.startswith('  File "')]
    assert done.returncode == 1 and len(files) == 1 and f'{script}", line {WRONG.count(chr(10))}' in files[0], done.stderr
    assert done.stderr.splitlines()[-1].startswith("tessera.UsageError: [feed]"), done.stderr

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(WRONG)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    (error,) = [output for output in notebook.cells[0].outputs if output.output_type == "error"]
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))
    assert error["ename"] == "UsageError" and "# wrong" in text and "program.py" not in text, text


TYPED = '''
import numpy as np
import tessera as ts

batch, rows = ts.dims(batch=4, rows=8)

@ts.program
def step(x: ts.f32[batch, rows]):  # type: ignore[valid-type]
    y = ts.relu(x) + 1
    reveal_type(y)
    return ts.minimize(ts.mean(y * ts.param("w", [rows])), ts.optim.adamw(1e-3))

run = step.compile(mesh="a:2", layout={"batch": "a"})
reveal_type(run)
reveal_type(run.fetch("w"))
reveal_type(step.explain("a:2"))
reveal_type(run.save("folder"))
reveal_type(ts.load_model("folder"))
reveal_type(ts.einsum(y0, y0)) if (y0 := ts.constant(1.0)) else None
ts.optim.adamw("fast", weight_decay="much")
step.compile(mesh=4)
run.stepp(3)
'''


def test_types_are_known_to_a_checker(tmp_path):
    (tmp_path / "typed.py").write_text(TYPED)

    folder = pathlib.Path(ts.__file__).parents[1]
    environment = dict(os.environ) if folder.name in ("site-packages", "dist-packages") else {**os.environ, "MYPYPATH": str(folder)}

    def checked(*arguments):
        command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
        return done.stdout + done.stderr

    assert checked("-p", "tessera").startswith("Success"), checked("-p", "tessera")
    said = checked("typed.py")
    for expected in ["Tensor", "program.Run", "ndarray", "report.Explanation", "str", "models.Model"]:
        assert re.search(rf'Revealed type is "[^"]*{expected}', said), said
    assert said.count("error:") == 3, said
    for expected in ['argument "weight_decay" to "adamw" has incompatible type "str"', 'argument "mesh" to "compile" of "Program"', '"Run" has no attribute "stepp"']:
        assert expected.lower() in said.lower(), said


def test_each_op_has_a_text_of_its_own():
    said = {}
    for module in (ts, ts.nn, ts.init, ts.optim):
        for name, function in vars(module).items():
            text = (getattr(function, "__doc__", None) or "").strip()
            if not callable(function) or name.startswith("_") or isinstance(function, type) or not (getattr(function, "__module__", "") or "").startswith("tessera"):
                continue
            if "->" in text.split("\n\n")[0]:
                text = text.partition("\n\n")[2].strip()
            if function not in said.get(text, []):
                said.setdefault(text, []).append(function)
    shared = [{f.__name__ for f in functions} for functions in said.values() if len(functions) > 1]
    # These say what each of them does.
    assert sorted(map(sorted, shared)) == [["argmax", "argmin"], ["argsort", "sort"], ["stack", "unstack"]], shared


def test_ops_are_documented():
    undocumented = [
        name
        for name in ("einsum", "softmax", "gather", "scatter_add", "cumsum", "top_k", "sort", "repeat", "attention", "cross_entropy", "concat", "reshape")
        if len((getattr(ts, name).__doc__ or "").strip().splitlines()[-1]) < 30
    ]
    assert not undocumented
    for name in ts.ops.__all__:
        text = getattr(ts, name).__doc__
        assert "arg0" not in text and "arg:" not in text, f"{name}: its arguments have names"
        assert [line for line in text.splitlines() if line and "->" not in line], f"{name}: what it computes"
