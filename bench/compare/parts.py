"""The parts of `run`: for each one, how every system is started and what is read from it."""
import json
import os
import shutil
import socket
import subprocess
import sys
import time

from clickset import KEY_EXAMPLES, ROWS, SLOTS
from harness import machine, programs
from harness.jobs import Member, run as run_job

HERE = os.path.dirname(os.path.abspath(__file__))


class Mode:
    """How a model is trained: processes, Regatta's settings, Paddle's name for it."""

    def __init__(self, title, paddle, workers=1, servers=0, ranks=0, settings=(), shared=False):
        self.title, self.paddle, self.settings = title, paddle, list(settings)
        self.workers, self.servers, self.ranks, self.shared = workers, servers, ranks, shared


# All exchanges and updates are made, but no value changes: layers have the same zeros in every mode, and skipping
# them saves all modes the same work.
LEARN_NOTHING = ["hyper_parameters.optimizer.learning_rate=0"]


GEO_STEPS = 25
# beside this one, the dense layers alone are measured on one core
COMPUTE_BESIDE = "async-1-1"
MODES = {
    "local": Mode("one process, 1 thread", "local"),
    "async-1-1": Mode("async, 1 worker + 1 server", "async", 1, 1, settings=["runner.sync_mode=async"]),
    "async-2-1": Mode("async, 2 + 1", "async", 2, 1, settings=["runner.sync_mode=async"]),
    "sync-2-1": Mode("sync, 2 + 1", "sync", 2, 1, settings=["runner.sync_mode=sync"]),
    "sync-2-1-shared": Mode("sync, 2 + 1, batch shared", None, 2, 1,
                            settings=["runner.sync_mode=sync"], shared=True),
    "sync-2-1-still": Mode("sync, 2 + 1, learning rate 0", None, 2, 1,
                           settings=["runner.sync_mode=sync"] + LEARN_NOTHING),
    "geo-2-1": Mode("geo, 2 + 1", "geo", 2, 1,
                    settings=["runner.sync_mode=geo", "runner.geo_step=%d" % GEO_STEPS]),
    "collective-2": Mode("collective, 2 ranks", "collective", 2, ranks=2),
    "collective-2-shared": Mode("collective, 2 ranks, batch shared", None, 2, ranks=2, shared=True),
}
# what these are held against, back to back and several times: a machine is not as fast in every minute
PAIRS = 3
ASYNC_BESIDE = {
    "sync-2-1": MODES["async-2-1"],
    "sync-2-1-still": Mode("async, 2 + 1, learning rate 0", None, 2, 1,
                           settings=["runner.sync_mode=async"] + LEARN_NOTHING),
}
KEYS = {"keys-2600": 2600, "keys-10000": 10_000, "keys-52000": 52_000}
FILES = "files"
NAMES = list(MODES) + list(KEYS) + [FILES]

REGATTA, PADDLE, INSTALLED, TORCH = "regatta", "paddle", "paddle as installed", "torch"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOG_v": "0"}
# Paddle's MKL takes its AVX2 path on AMD only when told to.
BEST = {"MKL_DEBUG_CPU_TYPE": "5"}


def call(command, cwd=None):
    """Runs a command with its output on standard error; returns its exit code."""
    return subprocess.run(command, cwd=cwd, stdout=sys.stderr).returncode


class Failed(Exception):
    """A run that did not work, and why."""


def in_folder(a):
    """Where processes run: Paddle leaves logs and program texts in the current folder."""
    folder = os.path.join(a.work, "run", "cwd")
    os.makedirs(folder, exist_ok=True)
    return folder


class Bench:
    def __init__(self, a, programs, paddle, torch, data):
        self.a, self.programs, self.paddle, self.torch, self.data = a, programs, paddle, torch, data
        self.runs, self.broken, self.loads = [], {}, []

    def settings(self):
        a = self.a
        return {"examples": a.examples, "rounds": a.rounds, "cores": a.cores, "rows": ROWS,
                "oracle_auc": self.data.oracle, "geo_steps": GEO_STEPS,
                "load_average": [round(x, 1) for x in self.loads],
                "paddle_setting": BEST if machine.is_amd() else {},
                "titles": {n: m.title for n, m in MODES.items()}}

    def run(self):
        for number in range(self.a.rounds):
            for part in self.a.only:
                for batch in ([None] if part in KEYS or part == FILES else self.a.batch):
                    systems = self.systems(part, number)
                    # another system goes first in every round
                    at = number % len(systems)
                    for system in systems[at:] + systems[:at]:
                        self.measure(part, batch, system, number)
            self.loads.append(os.getloadavg()[0])

    def systems(self, part, number):
        found = [REGATTA]
        if self.paddle and (part not in MODES or MODES[part].paddle):
            found.append(PADDLE)
            if part == "local" and number == 0 and machine.is_amd():
                found.append(INSTALLED)
        if self.torch and part in ("local", "collective-2"):
            found.append(TORCH)
        return found

    def measure(self, part, batch, system, number):
        key = (part, batch, system)
        entry = {"part": part, "batch": batch, "system": system, "round": number}
        if key in self.broken:
            entry["error"] = self.broken[key]
        else:
            machine.use_memory()
            begin = time.monotonic()
            # every round begins with other weights, so that AUC has a spread too
            self.seed = number + 1
            try:
                entry.update(self.start(part, batch, system))
            except Failed as e:
                entry["error"] = self.broken[key] = str(e)
            entry["wall_s"] = round(time.monotonic() - begin, 2)
        self.runs.append(entry)
        told = entry.get("error") or ", ".join(
            "%s %.4g" % (k, v) for k, v in entry.items() if isinstance(v, float))
        print("round %d, %s%s, %s: %s" % (number + 1, part, ", batch %d" % batch if batch else "",
                                          system, told), file=sys.stderr, flush=True)

    def start(self, part, batch, system):
        if part in KEYS:
            keys = KEYS[part]
            return self.regatta_keys(keys) if system == REGATTA else self.paddle_keys(keys)
        if part == FILES:
            return self.regatta_files() if system == REGATTA else self.paddle_files()
        mode = MODES[part]
        if system == REGATTA:
            found = self.regatta_train(mode, batch)
            if part == COMPUTE_BESIDE:
                found["compute_per_sec"] = self.regatta_compute(batch)
            if part in ASYNC_BESIDE:
                found["over_async"] = self.regatta_pairs(mode, ASYNC_BESIDE[part], batch)
            return found
        if system == TORCH:
            return self.torch_train(mode, batch)
        return self.paddle_train(mode, batch, best=system == PADDLE)

    # Regatta

    def regatta(self, command, settings, flags=(), data=None):
        """Runs a command of Regatta; returns the outcome and its JSON report."""
        folder = self.fresh("regatta")
        report = os.path.join(folder, "report.json")
        settings = ["runner.train_data_dir=" + (data or self.data.train),
                    "runner.test_data_dir=" + os.path.join(self.data.test, "files"),
                    "runner.model_save_path=" + os.path.join(self.a.work, "model"),
                    "runner.infer_load_path=" + os.path.join(self.a.work, "model"), *settings]
        line = [os.path.join(self.programs, "regatta"), command, "-m",
                os.path.join(HERE, "ctr.yaml"), "--report", report, *flags, "-o", *settings]
        outcome = run_job([Member("main", line)], self.a.limit, self.a.cores, role_of=programs.role,
                          cwd=in_folder(self.a))
        if outcome.failure():
            raise Failed(outcome.failure())
        with open(report) as f:
            return outcome, json.load(f)

    def regatta_pass(self, mode, batch):
        """Trains for a pass; returns the outcome and the report of the pass."""
        flags = []
        if mode.servers:
            flags = ["--servers", str(mode.servers), "--workers", str(mode.workers)]
        elif mode.ranks:
            flags = ["--ranks", str(mode.ranks)]
        outcome, report = self.regatta("train", self.regatta_settings(mode, batch) + mode.settings, flags)
        return outcome, report["epochs"][0]

    def regatta_settings(self, mode, batch):
        size = batch // mode.workers if mode.shared else batch
        return ["runner.train_batch_size=%d" % size, "runner.seed=%d" % self.seed,
                "hyper_parameters.sparse_feature_number=%d" % ROWS]

    def regatta_pairs(self, mode, other, batch):
        """How fast a mode is over another, by pairs of passes; another of the two goes first in every pair."""
        ratios = []
        for number in range(PAIRS):
            speed = {}
            for m in (mode, other)[::1 if number % 2 else -1]:
                speed[m] = self.regatta_pass(m, batch)[1]["examples_per_sec"]
            ratios.append(speed[mode] / speed[other])
        return ratios

    def regatta_train(self, mode, batch):
        outcome, epoch = self.regatta_pass(mode, batch)
        _, judged = self.regatta("infer", self.regatta_settings(mode, batch))
        workers = [v for k, v in outcome.peak_mb.items() if k.startswith("worker:")]
        servers = [v for k, v in outcome.peak_mb.items() if k.startswith("server:")]
        return self.trained(epoch["examples"], epoch["seconds"], judged["epochs"][0]["auc"],
                            workers or [outcome.peak_mb["main"]], servers,
                            outcome.first_time(r"batch_id: 0,"),
                            save_s=epoch["stages"]["save"])

    def regatta_compute(self, batch):
        """Examples/s of the dense layers alone on one core: batches in memory, no lookups, no exchange."""
        line = [os.path.join(self.programs, "step"), "--workload", "w1", "--batch", str(batch)]
        outcome = run_job([Member("main", line)], self.a.limit, self.a.cores[:1], cwd=in_folder(self.a))
        if outcome.failure():
            raise Failed(outcome.failure())
        told = [json.loads(t) for _, _, t in outcome.lines if t.startswith("{")]
        return told[-1]["examples_per_sec"]

    def regatta_keys(self, keys):
        """The sparse path alone: a network of one neuron, so that almost nothing is computed. The first epoch
        creates the rows. With batches from files and from memory, as for Paddle; the faster way counts."""
        settings = ["runner.train_batch_size=%d" % (keys // SLOTS), "runner.epochs=2",
                    "runner.infer_end_epoch=2", "hyper_parameters.fc_sizes=[1]",
                    "hyper_parameters.sparse_feature_number=%d" % (KEY_EXAMPLES * SLOTS + 1),
                    # nothing is learned that old values could spoil: the next batch need not wait for them
                    "runner.sync_mode=async", "runner.min_send_grad_num_before_recv=2"]
        rates = {}
        for way, reader in (("dataset", "QueueDataset"), ("memory", "InMemoryDataset")):
            _, report = self.regatta("train", settings + ["runner.reader_type=" + reader],
                                     ["--servers", "1", "--workers", "1"], data=self.data.keys)
            rates[way] = SLOTS * report["epochs"][1]["examples_per_sec"]
        return fastest(rates)

    def regatta_files(self):
        folder = self.fresh("files")
        line = [os.path.join(self.programs, "ps"), "--files", str(KEY_EXAMPLES * SLOTS), "--dim", "9", "--adam",
                "--folder", folder, "--json", os.path.join(folder, "files.json")]
        outcome = run_job([Member("main", line)], self.a.limit, self.a.cores,
                          cwd=in_folder(self.a))
        if outcome.failure():
            raise Failed(outcome.failure())
        with open(os.path.join(folder, "files.json")) as f:
            files = json.load(f)["files"]
        if files["loaded_rows"] != files["rows"]:
            raise Failed("%d of %d rows came back" % (files["loaded_rows"], files["rows"]))
        return {"save_s": files["save_s"], "load_s": files["load_s"]}

    # Paddle

    def paddle_script(self, *flags):
        return [self.paddle, "-u", os.path.join(HERE, "ctr_paddle.py"), *flags]

    def paddle_train(self, mode, batch, best):
        env = dict(ONE_THREAD, MKL_DEBUG_CPU_TYPE=None)
        if best and machine.is_amd():
            env.update(BEST)
        flags = ["--mode", mode.paddle, "--train", self.data.train, "--rows", str(ROWS),
                 "--batch", str(batch), "--seed", str(self.seed), "--geo-steps", str(GEO_STEPS),
                 "--test", os.path.join(self.data.test, "files", "part-00000.txt")]
        if mode.ranks:
            return self.paddle_ranks(mode, flags, env)
        flags += ["--first", self.data.first(batch)]
        if mode.servers:
            outcome, results = self.paddle_servers(mode.workers, flags, env)
        else:
            env["BENCH_START"] = str(time.time())
            outcome = run_job([Member("worker:0", self.paddle_script(*flags), env)], self.a.limit,
                              self.a.cores, cwd=in_folder(self.a))
            results = self.results(outcome)
        return self.summed(outcome, results)

    def paddle_ranks(self, mode, flags, env):
        """Row-sparse gradients if gloo takes them, else those of the whole table."""
        ports = free_ports(mode.ranks)
        ends = ",".join("127.0.0.1:%d" % p for p in ports)
        env.update(PADDLE_TRAINER_ENDPOINTS=ends, PADDLE_TRAINERS_NUM=str(mode.ranks),
                   PADDLE_DISTRI_BACKEND="gloo", PADDLE_MASTER=ends.split(",")[0],
                   BENCH_START=str(time.time()))
        reasons = []
        for extra in ([], ["--dense-gradients"]):
            members = [Member("worker:%d" % i, self.paddle_script(*flags, *extra), dict(
                env, PADDLE_TRAINER_ID=str(i), PADDLE_RANK_IN_NODE=str(i),
                PADDLE_CURRENT_ENDPOINT="127.0.0.1:%d" % p)) for i, p in enumerate(ports)]
            outcome = run_job(members, self.a.limit, self.a.cores, cwd=in_folder(self.a))
            try:
                found = self.summed(outcome, self.results(outcome))
            except Failed as e:
                reasons.append(str(e))
                continue
            if extra:
                found["note"] = "gradients of the whole table; with row-sparse ones: " + reasons[0]
            return found
        raise Failed(reasons[-1])

    def paddle_servers(self, workers, flags, env, grace=1.0):
        """A parameter-server job: one server, which never ends by itself."""
        folder = self.fresh("gloo")
        server, gloo, *own = free_ports(2 + workers)
        env = dict(env, PADDLE_PSERVERS_IP_PORT_LIST="127.0.0.1:%d" % server,
                   PADDLE_TRAINER_ENDPOINTS=",".join("127.0.0.1:%d" % p for p in own),
                   PADDLE_TRAINERS_NUM=str(workers), POD_IP="127.0.0.1", PADDLE_WITH_GLOO="1",
                   PADDLE_GLOO_RENDEZVOUS="3", PADDLE_GLOO_FS_PATH=folder,
                   PADDLE_GLOO_HTTP_ENDPOINT="127.0.0.1:%d" % gloo, PADDLE_GLOO_HTTP_HOST="127.0.0.1",
                   PADDLE_GLOO_HTTP_PORT=str(gloo), BENCH_START=str(time.time()))
        script = self.paddle_script(*flags)
        members = [Member("server:0", script, dict(env, TRAINING_ROLE="PSERVER",
                                                   PADDLE_PORT=str(server)), ends_job=False)]
        for i, port in enumerate(own):
            members.append(Member("worker:%d" % i, script, dict(
                env, TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID=str(i), PADDLE_PORT=str(port))))
        outcome = run_job(members, self.a.limit, self.a.cores, grace=grace, cwd=in_folder(self.a))
        return outcome, self.results(outcome)

    def paddle_keys(self, keys):
        """By dataset and by a loop of exe.run; the faster one counts."""
        rates = {}
        base = ["--mode", "async", "--net", "rows", "--train", self.data.keys,
                "--rows", str(KEY_EXAMPLES * SLOTS + 1), "--batch", str(keys // SLOTS)]
        for way, flags in (("dataset", []), ("loop", ["--feed-steps", "100"])):
            _, results = self.paddle_servers(1, base + flags, dict(ONE_THREAD, **BEST))
            rates[way] = SLOTS * results[0]["examples"] / results[0]["seconds"]
        return fastest(rates)

    def paddle_files(self):
        folder = self.fresh("files")
        base = ["--mode", "async", "--net", "rows", "--train", self.data.keys,
                "--rows", str(KEY_EXAMPLES * SLOTS + 1), "--batch", "2000", "--feed-steps", "20"]
        env = dict(ONE_THREAD, **BEST)
        _, saved = self.paddle_servers(1, base + ["--save", folder], env)
        outcome, _ = self.paddle_servers(1, base + ["--load", folder], env)
        loaded = [json.loads(t[7:]) for _, l, t in outcome.lines
                  if l == "server:0" and t.startswith("RESULT ")]
        if not loaded:
            raise Failed("the server did not tell how long loading took")
        return {"save_s": saved[0]["save_s"], "load_s": loaded[0]["load_s"]}

    # PyTorch

    def torch_train(self, mode, batch):
        ranks = max(mode.ranks, 1)
        script = [self.torch, "-u", os.path.join(HERE, "ctr_torch.py"), "--train", self.data.train,
                  "--test", os.path.join(self.data.test, "files", "part-00000.txt"),
                  "--rows", str(ROWS), "--batch", str(batch), "--seed", str(self.seed)]
        env = dict(ONE_THREAD, WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(free_ports(1)[0]), BENCH_START=str(time.time()))
        members = [Member("worker:%d" % i, script, dict(env, RANK=str(i))) for i in range(ranks)]
        outcome = run_job(members, self.a.limit, self.a.cores, cwd=in_folder(self.a))
        return self.summed(outcome, self.results(outcome))

    # what they have in common

    def results(self, outcome):
        """What workers have reported, by rank."""
        workers = [l for l in outcome.codes if l.startswith("worker:")]
        told = {l: json.loads(t[7:]) for _, l, t in outcome.lines
                if l in workers and t.startswith("RESULT ")}
        missing = [l for l in workers if l not in told]
        if outcome.timed_out or missing:
            reason = outcome.failure(workers) or outcome.failure()
            raise Failed(reason or "%s reported nothing" % missing[0])
        return [told[l] for l in sorted(told)]

    def summed(self, outcome, results):
        peaks = outcome.peak_mb
        return self.trained(sum(r["examples"] for r in results), max(r["seconds"] for r in results),
                            results[0].get("auc"), [v for k, v in peaks.items() if k.startswith("worker")],
                            [v for k, v in peaks.items() if k.startswith("server")],
                            max(r["first_step_s"] for r in results))

    def trained(self, examples, seconds, auc, workers, servers, first_step_s, save_s=None):
        found = {"examples_per_sec": examples / seconds, "auc": auc, "first_step_s": first_step_s,
                 "worker_mb": max(workers), "memory_mb": sum(workers) + sum(servers)}
        if servers:
            found["server_mb"] = max(servers)
        if save_s is not None:
            found["save_s"] = save_s
        return found

    def fresh(self, name):
        folder = os.path.join(self.a.work, "run", name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        return folder


def fastest(rates):
    """Keys per second of every way to feed a system, and of the fastest."""
    return dict({"keys_per_sec_" + way: rate for way, rate in rates.items()},
                keys_per_sec=max(rates.values()))


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()
