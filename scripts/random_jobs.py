#!/usr/bin/env python3
"""random_jobs.py PROGRAM --minutes N [--seed S] [--streams K] [--out DIR]: random small jobs, which signals disturb; best of a build
with sanitizers (scripts/sanitize --minutes N).

A job is trained once in peace. Then the same job is started again and again: with other meshes, with ranks that are threads or
processes of MPI, and stopped, continued, asked to save, or killed at any time. What comes out must be the same: to the bit on one
mesh and with strict numerics, within rounding on others. Its checkpoint is converted and exported, writes texts and serves requests
that hurt. A report of a sanitizer, another exit code than docs/reference/exit-codes.md says, a hang or another result is a finding,
whose folder is kept. The same seed draws the same jobs; when a signal arrives is up to the machine.

The last line counts jobs, seconds, signals and findings; the exit status is 1 if there are findings."""
import argparse, json, math, os, pathlib, random, re, shutil, signal, socket, struct, subprocess, sys, threading, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPORT = re.compile(r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|internal error|corrupted |malloc\(\): |free\(\): ")
ENDINGS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP]
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
       "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


class Finding(Exception):
    pass


def draw_model(random, folder):
    """(model, its flags, whether it writes texts, [(mesh, layout)] that fit it)."""
    pick = random.choice
    text = ["--data", str(ROOT / "data/moby-dick.txt")]
    plain = [("data:2", ""), ("data:4", ""), ("data:2;model:2", "batch:data;heads,ff,vocab:model"), ("model:4", "heads,ff,vocab:model"),
             ("a:3", "length:a"), ("data:2", "batch:data;@state ff,d_model:data"), ("data:2;a:2", "batch:data;@params d_model:data;ff:a")]
    kind = pick(["gpt", "gpt", "context", "pipeline", "cnn", "mlp", "experts", "lora", "packed", "answers"])
    size = ["layers=" + pick("12"), "d_model=32", "heads=4", "ff=" + pick(["48", "64"]), "length=" + pick(["24", "32"]), "batch=8"]
    if kind == "gpt":
        more = [pick(["dropout=0.1", "tied=true", "loss_blocks=4", "ema=0.9", "recompute=block", "ahead=1"]), pick(["scan=true", "scan=false"])]
        return "gpt", text + ["--set", *size, *more, pick(["microbatches=1", "microbatches=2"])], True, plain
    if kind == "context":
        return "gpt", text + ["--set", *size[:-2], "length=32", "batch=4"], True, [
            ("context:2", "length:context*2"), ("context:4", "length:context*2"), ("a:2;context:2", "batch:a;length:context*2")]
    if kind == "pipeline":
        flags = text + ["--set", "layers=4", *size[1:], "scan=true", "microbatches=4", "pipeline_schedule=" + pick(["1f1b", "gpipe", "zb_h1"])]
        return "gpt", flags, True, [("pipe:2", "layers:pipe"), ("pipe:4", "layers:pipe"), ("pipe:2;model:2", "layers:pipe;heads,ff,vocab:model")]
    if kind in ("cnn", "mlp"):
        layouts = [("data:2", ""), ("data:4", "batch:data"), ("a:3", "batch:a"), ("data:2;model:2", "batch:data;hidden:model")]
        return kind, ["--data", str(ROOT / "data/digits"), "--set", "batch=16", "hidden=32"], False, layouts
    if kind == "experts":
        (folder / "experts").mkdir()
        (folder / "experts/config.json").write_text(json.dumps({
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 128, "num_local_experts": 8,
            "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
            "router_aux_loss_coef": 0.02, "sliding_window": None}))
        return str(folder / "experts"), text + ["--init", "random", "--set", "length=32", "batch=8"], True, [
            ("data:2", ""), ("data:2;model:2", "batch,experts:data;ff:model"), ("data:4", "batch,experts:data")]
    llama = str(ROOT / "data/tiny-llama")
    if kind == "lora":
        return llama, text + ["--lora-rank", pick("24"), "--set", "length=32", "batch=4"], True, [
            ("data:2", ""), ("model:2", "heads,ff:model"), ("data:4", ""), ("data:2", "batch:data;@state ff?,lora?:data")]
    tokenizer = str(ROOT / "tests/tokenizer/fixtures/byte_level.json")
    with open(folder / "lines.jsonl", "w") as out:
        for i in range(60):
            line = {"prompt": f"question {i}", "completion": f" answer {i * i}"} if kind == "answers" else {"text": f"document {i} " * (i % 7 + 1)}
            out.write(json.dumps(line) + "\n")
    if kind == "packed":
        return "gpt", ["--data", "corpus.idx", "--set", "packed=true", "vocab=600", *size], False, plain[:3]
    return "gpt", ["--set", "data.path=lines.jsonl", "data.tokenizer=" + tokenizer, "vocab=600", *size[:-2], "length=32", "batch=6"], False, [
        ("data:2", ""), ("data:3", ""), ("a:2;b:2", "batch:a;ff:b")]


class Stream:
    def __init__(self, program, seed, out):
        self.program, self.seed, self.out = program, seed, out
        self.has_mpi = "mpi   no" not in subprocess.run([program, "info"], capture_output=True, text=True).stdout
        self.jobs = self.commands = self.findings = 0
        self.seconds, self.signals = 0.0, {}

    def run_until(self, end):
        number = 0
        while time.monotonic() < end:
            folder = self.out / f"{self.seed}-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self.random, self.folder, begin = random.Random(f"{self.seed} {number}"), folder, time.monotonic()
            try:
                self.job()
                shutil.rmtree(folder)
            except Finding as finding:
                self.findings += 1
                print(f"finding: {folder}: {finding}", flush=True)
            self.jobs, number, self.seconds = self.jobs + 1, number + 1, self.seconds + time.monotonic() - begin
            with open(self.out / f"{self.seed}.log", "a") as log:
                print(json.dumps(self.counts()), file=log)

    def counts(self):
        return {"jobs": self.jobs, "commands": self.commands, "seconds": round(self.seconds), "signals": self.signals, "findings": self.findings}

    # Commands

    def start(self, arguments, ranks, name):
        command = [self.program, *arguments]
        if ranks:
            command = ["mpirun", "-n", str(ranks), *command]
        self.commands += 1
        with open(self.folder / name, "w") as out:
            out.write(" ".join(f"'{a}'" for a in command) + "\n")
            out.flush()
            return subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                    env={**os.environ, **MPI}, process_group=0)

    def ranks_of(self, process, ranks):
        """Processes that signals may go to: those of the program."""
        if not ranks:
            return [process.pid]
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            return [int(pid) for pid in children.read_text().split()]
        except OSError:
            return []

    def send(self, pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        name = signal.Signals(number).name
        self.signals[name] = self.signals.get(name, 0) + 1
        with open(self.folder / "signals.txt", "a") as out:
            print(f"{time.time():.3f} {name} to {pid}", file=out)
        return True

    def disturb(self, process, ranks, life):
        """Stops and continues it a few times within `life` seconds; mostly ends it then. Whether it did."""
        until = time.monotonic() + self.random.uniform(0, life)
        for _ in range(self.random.choice([0, 0, 1, 3])):
            time.sleep(max(0, min(until - time.monotonic(), self.random.uniform(0, life / 2))))
            pids = self.ranks_of(process, ranks)
            if process.poll() is None and pids and self.send(pid := self.random.choice(pids), signal.SIGSTOP):
                time.sleep(self.random.uniform(0, 2))
                self.send(pid, signal.SIGCONT)
        while time.monotonic() < until and process.poll() is None:
            time.sleep(0.005)
        if process.poll() is not None or self.random.random() < 0.2:
            return False
        number, sent = self.random.choice(ENDINGS), False
        pids = self.ranks_of(process, ranks) or [process.pid]
        for pid in pids if self.random.random() < 0.5 else [self.random.choice(pids)]:
            sent |= self.send(pid, number)
        return sent

    def wait(self, process, name, ended, allowed=(0,)):
        try:
            code = process.wait(1200)
        except subprocess.TimeoutExpired:
            subprocess.run(["ps", "-eLo", "pid,stat,wchan:30,args"], stdout=open(self.folder / "hang.txt", "w"))
            is_empty = process.args[0] == "mpirun" and not self.ranks_of(process, ranks=1)
            os.killpg(process.pid, signal.SIGKILL)
            if is_empty and ended:  # Open MPI 4.1's mpirun may not notice that all of its ranks are gone
                return process.wait()
            raise Finding(f"{name}: no end after 1200 s")
        text = (self.folder / name).read_text(errors="replace")
        if report := REPORT.search(text):
            raise Finding(f"{name}: {text[report.start():report.start() + 200]!r}")
        if code not in allowed and not ended:
            raise Finding(f"{name}: exit code {code}: {text.splitlines()[-1][:200]}")
        return code

    def run(self, arguments, ranks, name, allowed=(0,)):
        return self.wait(self.start(arguments, ranks, name), name, False, allowed)

    # Jobs

    def job(self):
        pick, folder = self.random.choice, self.folder
        model, flags, writes, meshes = draw_model(self.random, folder)
        if "corpus.idx" in flags:
            self.repeated(["tokenize", "--tokenizer", str(ROOT / "tests/tokenizer/fixtures/byte_level.json"), "lines.jsonl", "--append-eod",
                           "--out"], "corpus")
        strict = model in ("gpt", "mlp", "cnn") and "ahead=1" not in flags and pick([True, False, False])
        flags = [*flags, *(["train.numerics=strict"] if strict else pick([[], [], ["dtype=bfloat16"] if writes else [], ["optimizer=" + pick(["lion", "momentum", "adafactor"])]]))]
        steps = pick([8, 16, 30])
        flags = ["train", model, *flags, "--steps", str(steps), "--timeout", "600", "--seed", str(self.random.randrange(1000)), "--log"]
        mesh, layout = pick(meshes)
        zero = pick([[], [], ["--fsdp", "data"], ["--zero", "1", "--over", "data"]]) if mesh == "data:2" and not layout else []
        first = ["--mesh", mesh, *(["--layout", layout] if layout else []), *zero]
        begin = time.monotonic()
        self.run([*flags, "peace.jsonl", *first, "--checkpoint", "peace", "--keep", "1"], 0, "peace.txt")
        life = 1.2 * (time.monotonic() - begin)
        saves = ["--checkpoint", "ck", "--resume", "--keep", pick("1235"), *pick([[], ["--staging", "20000"], ["--keep-best"], ["--check-replicas", "1"]]),
                 *pick([[], ["--csv", "t.csv"], ["--tensorboard", "board"], ["--profile"], ["--trace", "trace.json"], ["--quiet"]])]
        moved = False
        for attempt in range(self.random.randrange(1, 6) + 1):
            other, rules = pick(meshes) if self.random.random() < 0.4 else (mesh, layout)
            moved |= (other, rules) != (mesh, layout)
            now = ["--mesh", other, *(["--layout", rules] if rules else []), *(zero if other == "data:2" and not rules else [])]
            ranks = pick([0, 0, 1]) and self.has_mpi and math.prod(int(axis.split(":")[1]) for axis in other.split(";"))
            name = f"attempt{attempt}.txt"
            process = self.start([*flags, "storm.jsonl", *now, "--save-every", pick("1125"), *saves], ranks, name)
            ended = self.disturb(process, ranks, life * (3 if ranks else 1))
            if self.wait(process, name, ended) == 0 and not ended:
                break
        self.run([*flags, "storm.jsonl", *first, *saves], 0, "last.txt")
        self.compare(exact=strict or not moved)
        self.run(["checkpoint", "verify", "ck"], 0, "verify.txt")
        on = ["--mesh", mesh, *(["--layout", layout] if layout and "@" not in layout and "*" not in layout else [])]
        if pick([True, False]):
            self.repeated(["convert", "ck"], "out.safetensors")
        if "--lora-rank" in flags:
            self.repeated(["export", "--checkpoint", "ck", "--like", model, *pick([[], ["--adapter"]])], "exported")
        if "pipe" in mesh or not writes:
            return
        if pick([True, False]):
            self.run(["generate", model, "--checkpoint", "ck", "--prompt", "Call me", "--tokens", "8", "--samples", "3", *on], 0, "generate.txt")
        if pick([True, False]):
            self.serve(["serve", model, "--checkpoint", "ck", "--port", "0", *on])

    def compare(self, exact):
        for name in ("peace", "ck"):
            self.run(["convert", name, name + ".safetensors", "--all"], 0, f"convert-{name}.txt")
        if exact:
            if (self.folder / "peace.safetensors").read_bytes() != (self.folder / "ck.safetensors").read_bytes():
                raise Finding("parameters or state have other bits than without signals")
            return
        losses = [{}, {}]
        for log, of in zip(("peace.jsonl", "storm.jsonl"), losses):
            for line in (self.folder / log).read_text().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:  # a killed job's last line
                    continue
                if "loss" in record and "step" in record:
                    of[record["step"]] = record["loss"]
        for step, loss in losses[0].items():
            if not abs(losses[1].get(step, 1e9) - loss) <= 0.05 * abs(loss):
                raise Finding(f"step {step} has loss {losses[1].get(step)}, and {loss} without signals")

    def repeated(self, command, out):
        """A command that is killed or asked to end, then run again, writes what it writes in peace."""
        begin = time.monotonic()
        self.run([*command, "peace-" + out], 0, "once.txt")
        process = self.start([*command, out], 0, "killed.txt")
        ended = self.disturb(process, 0, time.monotonic() - begin)
        self.wait(process, "killed.txt", ended)
        if not any((self.folder / (out + end)).exists() for end in ("", ".idx")):  # what has its name is complete
            self.run([*command, out], 0, "again.txt")
        for path in sorted(self.folder.glob("peace-" + out + "*")) + sorted(self.folder.glob("peace-" + out + "/*")):
            twin = self.folder / str(path.relative_to(self.folder)).replace("peace-", "", 1)
            if path.is_file() and path.suffix != ".json" and path.read_bytes() != twin.read_bytes():
                raise Finding(f"{command[0]} wrote another {path.name} after a signal")
        if left := [p.name for p in self.folder.iterdir() if ".tmp" in p.name]:
            raise Finding(f"{command[0]} left {left}")

    # Requests

    def serve(self, command):
        process = self.start(command, 0, "serve.txt")
        port, begin = None, time.monotonic()
        while port is None and process.poll() is None and time.monotonic() - begin < 300:
            found = re.search(r"http://[\w.]+:(\d+)", (self.folder / "serve.txt").read_text(errors="replace"))
            port = int(found.group(1)) if found else time.sleep(0.1)
        if port is None:
            process.kill()
            self.wait(process, "serve.txt", False)
        seeds = [self.random.randrange(1 << 30) for _ in range(4)]
        clients = [threading.Thread(target=self.client, args=(port, random.Random(seed)), daemon=True) for seed in seeds]
        for client in clients:
            client.start()
        if self.random.random() < 0.3 and self.send(process.pid, signal.SIGSTOP):
            time.sleep(1)
            self.send(process.pid, signal.SIGCONT)
        early = self.random.random() < 0.3
        for client in clients:
            client.join(0.5 if early else 120)
        if not early and b" 200 " not in self.request(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"):
            process.kill()
            raise Finding("serve: no answer to /health")
        number = self.random.choice([signal.SIGTERM, signal.SIGINT])
        self.send(process.pid, number)
        self.wait(process, "serve.txt", False, (0, 75))
        for client in clients:
            client.join(120)

    def request(self, port, data, pause=0.0, leave_after=None):
        answer = b""
        try:
            with socket.create_connection(("127.0.0.1", port), 60) as to:
                step = max(1, len(data) // 20) if pause else len(data)
                for at in range(0, len(data), step):
                    to.sendall(data[at:at + step])
                    time.sleep(pause)
                while part := to.recv(4096):
                    answer += part
                    if leave_after is not None and len(answer) >= leave_after:
                        to.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        break
        except OSError:
            pass
        return answer

    def client(self, port, random):
        def post(body, path="/v1/completions", more=""):
            return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body
        for _ in range(random.randrange(3, 12)):
            text = {"prompt": random.choice(["a", "Call me", ["a", "b"], [1, 2, 3], "\ud83d\ude00", "x" * 400, "", 7, None, [[]], [-1], [1 << 40]]),
                    "max_tokens": random.choice([1, 5, 20, 0, -1, 1 << 31, 1e300, "3", None]), "stream": random.choice([True, False, None, 1]),
                    "temperature": random.choice([0, 1, 2, -1, 1e308, None]), "n": random.choice([1, 2, 0, 200]), "logprobs": random.choice([None, 0, 5, 99]),
                    "echo": random.choice([True, False]), "stop": random.choice([None, "e", ["a", ""], [], "\n" * 50]), "best_of": random.choice([1, 3]),
                    "logit_bias": random.choice([None, {}, {"5": 100}, {"x": 1}, {"-1": 2}, {"99999999999": 1}])}
            text = {key: value for key, value in text.items() if random.random() < 0.4 or key == "prompt"}
            body = json.dumps(text).encode()
            kind = random.randrange(12)
            if kind == 0:
                body = random.choice([b"[", b'{"a":']) * random.choice([100, 100000])
            elif kind == 1:
                body = bytes(random.randrange(256) for _ in range(random.choice([1, 100, 3000])))
            elif kind == 2:
                at = random.randrange(len(body))
                body = body[:at] + bytes([random.randrange(256)]) + body[at + 1:]
            elif kind == 3:
                body = json.dumps({"messages": [{"role": random.choice(["user", "x", 3]), "content": random.choice(["hi", None, [], {"a": 1}])}],
                                   "max_tokens": 3, "stream": True}).encode()
            if kind == 4:
                self.request(port, b"GET " + b"/" * random.choice([1, 100, 100000]) + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            elif kind == 5:
                self.request(port, post(body) * 5)
            elif kind == 6:
                chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[i:i + 9] for i in range(0, len(body), 9)))
                cut = random.choice([len(chunks), len(chunks) // 2])
                self.request(port, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" +
                             chunks[:cut] + random.choice([b"0\r\n\r\n", b"", b"ffffffffffffffffff\r\n", b"-1\r\n"]), leave_after=0 if random.random() < 0.5 else None)
            elif kind == 7:
                self.request(port, post(body, more="".join(f"X-{i}: {'y' * 50}\r\n" for i in range(random.choice([10, 2000])))))
            else:
                self.request(port, post(body, "/v1/chat/completions" if kind == 3 else "/v1/completions"), random.choice([0, 0, 0.05]),
                             random.choice([None, None, 0, 1, 200]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--streams", type=int, default=1, help="jobs at a time; stream k has seed S + k")
    parser.add_argument("--out", default="build/random-jobs", help="where logs and the folders of findings go")
    options = parser.parse_args()
    out = pathlib.Path(options.out).resolve()
    end = time.monotonic() + 60 * options.minutes
    streams = [Stream(os.path.abspath(options.program), options.seed + k, out) for k in range(options.streams)]
    threads = [threading.Thread(target=stream.run_until, args=(end,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    signals = sum(sum(stream.signals.values()) for stream in streams)
    total = {key: sum(getattr(stream, key) for stream in streams) for key in ("jobs", "commands", "seconds", "findings")}
    print(f"random jobs: {total['jobs']} jobs, {total['commands']} commands in {total['seconds'] / 3600:.2f} h of jobs, {signals} signals, "
          f"{total['findings']} findings")
    return 1 if total["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
