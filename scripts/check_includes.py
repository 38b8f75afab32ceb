#!/usr/bin/env python3
"""Checks who includes whom: the rules of docs/explanation/rooms.md. Prints each breach and exits 1 if there is one."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

# Public headers by the half that they belong to; every room may include those of VALUES.
VALUES = {"array", "attrs", "collectives", "dim", "dtype", "error", "build_info", "mesh", "host", "caller", "out_of_range", "pipeline_schedules"}
MODEL = {"ragged", "experts", "rounding", "graph", "function_updates", "op", "ops", "operators", "loops", "explain", "machine", "placement", "solver", "plan", "simulate", "compile_options", "compiled_program", "storage"}

# Room -> rooms and single headers that it may include besides itself and the public headers of its half. Every folder is a
# room; "lower" alone is the list of passes. docs/explanation/rooms.md says what each is for.
MODEL_ROOMS = {"base", "program", "ir"}
PRICES = {"collectives/cost.h"}  # bytes sent by a rank are defined once, there
USES_THE_API = {"base"}
ROOMS = {
    "include": set(),
    "base": set(),
    "program": {"base"},
    "ir": {"base", "program"},
    "ops": MODEL_ROOMS,
    "grad": MODEL_ROOMS | {"ops"},
    "cost": {"base", "program"} | PRICES,
    "lower/layout": MODEL_ROOMS | {"ops", "cost"} | PRICES,
    "lower/flow": MODEL_ROOMS | {"ops", "cost", "lower/layout"} | PRICES,
    "lower/partition": MODEL_ROOMS | {"ops", "cost", "lower/layout", "lower/flow"},
    "lower/passes": {"base", "program", "cost"} | PRICES,
    "lower": MODEL_ROOMS | {"ops", "cost", "lower/layout", "lower/flow", "lower/partition", "lower/passes"},
    "compile": MODEL_ROOMS | {"ops", "cost", "lower", "lower/layout", "kernels/common/kernel.h", "kernels/cpu/takes_epilogue.h", "kernels/cuda/epilogue.h",
                "kernels/cuda/generate.h", "kernels/cuda/rows.h"},
    "plan/solver": {"base"},
    "plan": MODEL_ROOMS | {"ops", "cost", "lower", "lower/layout", "compile", "plan/solver"},
    "runtime": {"base", "program", "kernels/common", "kernels/cpu/thread_pool.h", "collectives/communicator.h"},
    "gpu/device": {"base", "program", "runtime", "kernels/common", "kernels/cuda", "collectives/communicator.h",
                   "collectives/blocks.h"},
    "gpu/library": {"base", "gpu/device", "kernels/cuda"},
    "kernels/common": {"base", "program"},
    "kernels/cpu": {"base", "program", "kernels/common"},
    "kernels/cuda": {"base", "program", "kernels/common"},
    "collectives": {"base", "program"},
    "nn": USES_THE_API,
    "optim": USES_THE_API,
    "generate": USES_THE_API | {"kernels/common/philox.h"},
    "io": USES_THE_API,
    "tokenizer": USES_THE_API,
    "pytorch": USES_THE_API,
    "pages": {"base"},
    "cli": USES_THE_API | {"pages"},
    "c": {"base", "cli"},
    "benchmarks": USES_THE_API | {"collectives/communicator.h"},
    # Takes Programs apart, as no user does.
    "benchmarks/published_runs": {"base", "cost", "lower", "compile"},
    "python": set(),  # binds the public API
    "examples": set(),  # built as a user's project is: nothing but the public headers
}
COMPILE_HALF = {"ir", "ops", "grad", "cost", "lower", "lower/layout", "lower/flow", "lower/partition", "lower/passes",
                "compile", "plan", "plan/solver"}
RUN_HALF = {"program", "runtime", "gpu/device", "gpu/library", "kernels/common", "kernels/cpu", "kernels/cuda", "collectives"}
SEES_ALL = {"session", "tests"}

# Behind `localize` nothing has attributes by name: a step of a user's own op hands over those of its node, unread.
BEHIND_LOCALIZE = {"program", "cost", "lower/passes", "runtime", "gpu/device", "gpu/library", "kernels/common", "kernels/cpu",
                   "kernels/cuda", "collectives"}
HANDS_OVER = {"src/program/program.h", "src/program/text.cpp", "src/program/read_program.cpp", "src/program/read_spec.h",
              "src/program/read_spec.cpp", "kernels/cpu/host.cpp"}

# Headers of big libraries: where they may be included, as patterns of paths.
GUARDED = {
    r"mpi\.h": r"collectives/mpi_plugin\.cpp|include/tessera/interop/mpi\.h|tests/mpi/.*|benchmarks/.*",
    r"(cuda|cuda_runtime|cuda_bf16|cuda_fp16|cublas.*|nvrtc|cudnn.*|nvtx3?/.*)\.h(pp)?":
        r"src/gpu/library/.*|include/tessera/interop/cuda\.h|benchmarks/.*|tests/gpu/(nvtx|cublaslt|libcuda|rules)/.*|examples/cuda_guest\.cpp",
    r"nccl\.h": r"src/gpu/library/.*|benchmarks/.*|tests/gpu/rules/.*",
    r"pcre2\.h": r"src/tokenizer/pattern\.cpp",
    r"utf8proc\.h": r"src/tokenizer/normalizers\.cpp",
    r"zip\.h": r"src/pytorch/archive\.cpp",
    r"microhttpd\.h": r"src/cli/http_server\.cpp",
    r"sentencepiece.*\.h": r"src/tokenizer/sentencepiece_file\.cpp",
}


def sources():
    listed = subprocess.run([ROOT / "scripts/sources"], capture_output=True, text=True, check=True)
    return listed.stdout.split()


def room_of(path):
    folder = pathlib.PurePosixPath(path).parent.as_posix().removeprefix("src/")
    while folder not in ROOMS and folder not in SEES_ALL and "/" in folder:
        folder = folder.rpartition("/")[0]
    return folder


def target_of(path, name):
    """The included file of ours, or None for one of another project."""
    beside = (pathlib.PurePosixPath(path).parent / name).as_posix()
    for candidate in ("include/" + name, "src/" + name, name, "tests/" + name, beside):
        if (ROOT / candidate).exists():
            return candidate
    return None


def public_breach(room, target):
    header = pathlib.PurePosixPath(target).stem
    if "/interop/" in target:
        return None if room in SEES_ALL | {"c", "examples", "include", "benchmarks", "python"} else "interop is opt-in"
    if room == "base" and header not in VALUES:
        return f"base knows the headers {', '.join(sorted(VALUES))}"
    if room in RUN_HALF and header not in VALUES:
        return "the run half knows no graph"
    if room in COMPILE_HALF and header not in VALUES | MODEL:
        return "the compile half knows no rank and no device"
    return None


def breach(path, target):
    """Why `path` may not include `target`, or None."""
    room, other = room_of(path), room_of(target)
    if room in SEES_ALL or path == "src/cli/main.cpp":
        return None
    if room not in ROOMS:
        return f"scripts/check_includes.py has no rule for the room '{room}'"
    if other == "include":
        return public_breach(room, target)
    if other == room or other in ROOMS[room] or target in ROOMS[room]:
        return None
    allowed = sorted(ROOMS[room] | {room})
    return f"{room} may include its public headers and {', '.join(allowed)}"


def check_file(path, problems, edges):
    may_name_attributes = room_of(path) not in BEHIND_LOCALIZE or path in HANDS_OVER
    for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1):
        if not may_name_attributes and re.search(r"\b[Aa]ttrs\b", line):
            problems.append(f"{path}:{number}: attributes are of the graph; give the step's spec a member (src/program/specs.h)")
        found = INCLUDE.match(line)
        if not found:
            continue
        name = found.group(2)
        for pattern, places in GUARDED.items():
            if re.fullmatch(pattern, name) and not re.fullmatch(places, path):
                problems.append(f"{path}:{number}: <{name}> belongs only in {places}")
        target = target_of(path, name) if found.group(1) == '"' else None
        why = breach(path, target) if target else None
        if target and not path.startswith("tests/"):
            folders = tuple(pathlib.PurePosixPath(p).parent.as_posix() for p in (path, target))
            if folders[0] != folders[1]:
                edges.setdefault(folders, f"{path}:{number}")
        if why:
            problems.append(f"{path}:{number}: includes {name}: {why}")


def check_pairs(edges, problems):
    """No two folders include each other."""
    for (one, other), where in sorted(edges.items()):
        if one < other and (other, one) in edges:
            problems.append(f"{where} includes {other}, and {edges[other, one]} includes {one}: no two folders include each other")


def check_umbrella(problems):
    """tessera.h reaches no header of CUDA, MPI or NCCL, and nothing of interop."""
    seen, waiting = {}, [("tessera/tessera.h", "")]
    while waiting:
        name, chain = waiting.pop()
        path = ROOT / "include" / name
        if name in seen or not path.exists():
            continue
        seen[name] = chain = chain + "/" + path.name
        for line in path.read_text().splitlines():
            found = INCLUDE.match(line)
            if not found:
                continue
            if "/interop/" in found.group(2) or any(re.fullmatch(p, found.group(2)) for p in GUARDED):
                problems.append(f"include/{name}: tessera.h reaches {found.group(2)} by {chain[1:]}")
            waiting.append((found.group(2), chain))


def main():
    problems, edges, files = [], {}, sources()
    for path in files:
        check_file(path, problems, edges)
    check_pairs(edges, problems)
    check_umbrella(problems)
    for problem in problems:
        print(problem)
    print(f"includes: {len(problems)} breaches in {len(files)} files" if problems else f"includes: ok ({len(files)} files)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
