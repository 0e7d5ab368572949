"""Where a benchmark ran."""
import datetime
import mmap
import os
import platform


def describe():
    """Processor, cores, memory and system, for reports."""
    return {"cpu": cpu_model(), "cores": os.cpu_count(), "memory_gib": round(memory_gib(), 1),
            "system": "%s %s" % (platform.system(), platform.release()),
            "date": datetime.date.today().isoformat()}


def sentence(m):
    return "%d cores of %s, %.0f GiB, %s; %s." % (
        m["cores"], m["cpu"], m["memory_gib"], m["system"], m["date"])


def cpu_model():
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_gib():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def free_memory_gib():
    """Memory that new processes can have without swapping."""
    with open("/proc/meminfo") as f:
        for line in f:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 2**20
    return memory_gib()


def is_amd():
    try:
        with open("/proc/cpuinfo") as f:
            return "AuthenticAMD" in f.read(4096)
    except OSError:
        return False


def use_memory(size=2 << 30):
    """Uses so much memory once. A virtual machine may have given free memory back to its host, and whoever uses
    it first waits for it; that should not be the one who is measured."""
    with mmap.mmap(-1, size) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1
