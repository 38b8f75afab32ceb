"""What gpu_check and cluster_check share: commands with a bound, their output kept; a table last."""
import os, pathlib, shutil, subprocess, time


def bounded(command, seconds, log, env=None):
    """(output, exit status, seconds) of a command, whose output goes to `log`, too. The status is "absent" if it cannot be
    started, "time" if it ran longer than `seconds` and was ended."""
    start = time.monotonic()
    try:
        done = subprocess.run(command, env={**os.environ, **(env or {})}, timeout=max(1, seconds), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        text, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        text, code = (error.stdout or b"").decode(errors="replace"), "time"
    except OSError as error:
        text, code = str(error), "absent"
    log.write_text(" ".join(map(str, command)) + "\n" + text)
    return text, code, time.monotonic() - start


def complaint(text):
    """The line of an output that says what went wrong."""
    said = [line for line in text.splitlines() if line.strip(" -=")] or ["no output"]
    return next((line for line in said if "error" in line.lower()), said[-1])[:160]


class Report:
    def __init__(self, out, seconds):
        self.out, self.seconds, self.rows, self.end = pathlib.Path(out).resolve(), seconds, [], 0.0
        self.out.mkdir(parents=True, exist_ok=True)

    def begin(self):
        """Starts a part: its commands end within the bound together."""
        self.end = time.monotonic() + self.seconds

    def note(self, part, what, outcome, figure=""):
        self.rows.append((part, what, outcome, figure.replace("|", "/")))
        print(f"{part:<8} {what:<58} {outcome:<8} {figure}", flush=True)

    def run(self, part, what, command, env=None, fails=False):
        """(output, seconds) of a command, or None; the output is kept in the folder. fails: it has to."""
        log = self.out / f"{part}-{''.join(c if c.isalnum() else '_' for c in what)}.log"
        left = self.end - time.monotonic()
        if left < 1:
            self.note(part, what, "no time", f"{self.seconds} s were spent")
            return None
        text, code, spent = bounded(command, left, log, env)
        if code in ("absent", "time") or (code != 0) != fails:
            self.note(part, what, "absent" if code == "absent" else "FAILED", f"{code}: {complaint(text)} ({log.name})")
            return None
        return text, spent

    def step(self, part, what, command, figure=None, **more):
        """run() with a row for success; figure: from the output to the last column."""
        done = self.run(part, what, command, **more)
        if done:
            self.note(part, what, "ok", figure(done[0]) if figure else f"{done[1]:.0f} s")
        return done

    def finish(self):
        """Writes table.md, prints it, returns the exit status."""
        smi = shutil.which("nvidia-smi")
        query = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        gpu = subprocess.run([smi, *query], capture_output=True, text=True).stdout.strip() if smi else "no nvidia-smi"
        table = [gpu, time.strftime("%Y-%m-%d %H:%M:%S"), "", "| part | what | outcome | figure |", "|---|---|---|---|"]
        table += ["| " + " | ".join(row) + " |" for row in self.rows]
        (self.out / "table.md").write_text("\n".join(table) + "\n")
        print("\n" + "\n".join(table))
        return 1 if any(row[2] in ("FAILED", "no time") for row in self.rows) else 0


def last_line(text):
    return (text.strip().splitlines() or [""])[-1]
