"""Processes that are started together, watched and ended: lines with their times, peak memory, time limits."""
import os
import re
import signal
import subprocess
import sys
import threading
import time


class Member:
    """One process of a job. `label` names it and its children in `Outcome.peak_mb`."""

    def __init__(self, label, command, env=None, ends_job=True):
        self.label, self.command, self.env, self.ends_job = label, command, env or {}, ends_job


class Outcome:
    """What a job left behind.

    lines: (seconds since the start, label, text), in the order of arrival.
    peak_mb: largest resident memory by label, in 2^20 bytes.
    codes: exit codes by label; None for those that were ended by us.
    """

    def __init__(self):
        self.lines, self.peak_mb, self.cpu_s, self.codes = [], {}, {}, {}
        self.seconds, self.timed_out = 0.0, False

    def failure(self, labels=None):
        """Why it failed in one line; None if it did not."""
        if self.timed_out:
            return "did not end in time; last line: %s" % (last_words(self.lines) or "none")
        bad = [(l, c) for l, c in self.codes.items() if c and (labels is None or l in labels)]
        if not bad:
            return None
        label, code = bad[0]
        words = last_words([x for x in self.lines if x[1] == label]) or last_words(self.lines)
        how = "signal %d" % -code if code < 0 else "exit code %d" % code
        return "%s ended with %s; last line: %s" % (label, how, words or "none")

    def first_time(self, pattern):
        """Seconds until the first line that matches; None if there is none."""
        found = re.compile(pattern)
        return next((t for t, _, text in self.lines if found.search(text)), None)


def last_words(lines):
    """The last line that says something: not blank, not the frame of a trace, not a summary of modules."""
    idle = re.compile(r"^\s*$|^\s*(at |\.\.\.|\[|~|\^|-{3,}|File \"|\d+\s+\S+::)|Extension modules")
    told = [text.strip() for _, _, text in lines if not idle.search(text)]
    error = [t for t in told if re.search(r"(Error|error|Fatal|FatalError|Aborted)\b", t)]
    words = (error or told or [""])[-1]
    return words[:200]


def run(members, timeout, cores=None, grace=1.0, role_of=None, cwd=None):
    """Starts the members and waits until all that end the job have ended; the others are then ended.

    role_of: environment of a descendant -> its role or None, for jobs that start processes themselves; it is
    labelled `role:process id`.
    Nothing outlives the call: every member leads a process group, which is killed at the end."""
    outcome, start = Outcome(), time.monotonic()
    processes, readers = [], []

    def listen(label, stream):
        for line in stream:
            outcome.lines.append((time.monotonic() - start, label, line.rstrip("\n")))

    def prepare():
        if cores:
            os.sched_setaffinity(0, cores)

    try:
        for m in members:
            env = {k: v for k, v in {**os.environ, **m.env}.items() if v is not None}
            p = subprocess.Popen(m.command, env=env, stdin=subprocess.DEVNULL, cwd=cwd,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 errors="replace", process_group=0, preexec_fn=prepare)
            processes.append((m, p))
            readers.append(threading.Thread(target=listen, args=(m.label, p.stdout), daemon=True))
            readers[-1].start()
        watch(processes, outcome, start, timeout, grace, role_of)
    finally:
        for m, p in processes:
            outcome.codes[m.label] = p.poll()
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            p.wait()
        for r, (_, p) in zip(readers, processes):
            r.join(timeout=5)
            if not r.is_alive():
                p.stdout.close()
    outcome.seconds = time.monotonic() - start
    return outcome


def watch(processes, outcome, start, timeout, grace, role_of):
    ended = None
    while True:
        for m, p in processes:
            if p.poll() is None:
                measure(m.label, p.pid, outcome, role_of)
        now = time.monotonic()
        failed = any(p.poll() for m, p in processes if m.ends_job)
        if failed or all(p.poll() is not None for m, p in processes if m.ends_job):
            # the others may have a last word, but they do not decide when the job is over
            ended = ended or now
            others = [p for m, p in processes if p.poll() is None]
            if not others or now - ended > grace:
                return
        if now - start > timeout:
            outcome.timed_out = True
            return
        time.sleep(0.02)


def measure(label, pid, outcome, role_of):
    """Notes peak memory and processor time of a process and, with `role_of`, of its descendants."""
    note(label, pid, outcome)
    if role_of is None:
        return
    for child in descendants(pid):
        role = role_of(environment(child))
        if role:
            note("%s:%d" % (role, child), child, outcome)


def note(label, pid, outcome):
    peak = outcome.peak_mb.get(label, 0.0)
    outcome.peak_mb[label] = max(peak, peak_memory_mb(pid))
    outcome.cpu_s[label] = max(outcome.cpu_s.get(label, 0.0), cpu_seconds(pid))


def descendants(pid):
    found, todo = [], [pid]
    while todo:
        p = todo.pop()
        try:
            for task in os.listdir("/proc/%d/task" % p):
                with open("/proc/%d/task/%s/children" % (p, task)) as f:
                    children = [int(c) for c in f.read().split()]
                found += children
                todo += children
        except OSError:
            pass
    return found


def environment(pid):
    """The environment that a process was started with."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as f:
            pairs = f.read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(p.split("=", 1) for p in pairs if "=" in p)


def peak_memory_mb(pid):
    try:
        with open("/proc/%d/status" % pid) as f:
            for line in f:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def cpu_seconds(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0


def own_session():
    """Runs the rest of this script in a session of its own with a raised autogroup priority: where the
    kernel groups processes by session, nice values of other sessions' work do not protect a timed run.
    Members of jobs stay in that session."""
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            with open("/proc/self/autogroup", "w") as f:
                f.write("-15")
        except OSError:
            pass
        return

    def stop(signum, _frame):
        os.killpg(child, signum)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(status if status >= 0 else 128 - status)
