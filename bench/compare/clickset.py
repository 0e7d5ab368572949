"""The data of `run`: a synthetic click log as MultiSlot files, the same for every system.

26 slots with vocabularies from about 20 to 400,000 ids (1 million in all, Zipf 1.05), 13 floats; labels come from
a hidden logistic model, whose own AUC is the best that any model can reach."""
import os
import random
import re
import subprocess
import sys

from harness import tables

SLOTS, DENSE, VOCAB = 26, 13, 38_461
ROWS = SLOTS * VOCAB + 1
FILES, TEST = 10, 40_000
SOURCE = ("synthetic://ctr?slots=%d&dense=%d&vocab=%d&vocab_ratio=20000&zipf=1.05&signal=0.71&seed=1"
          % (SLOTS, DENSE, VOCAB))
# examples of the files for pulls and pushes: each file holds every id once
KEY_EXAMPLES, KEY_FILES = 40_000, 4


class ClickSet:
    """Paths of the files."""

    def __init__(self, folder, examples):
        self.examples, self.folder = examples, folder
        self.train = os.path.join(folder, "train-%d" % examples)
        self.test = os.path.join(folder, "test")
        self.keys = os.path.join(folder, "keys")
        self.oracle = None

    def first(self, batch):
        """Folder with the first file of two workers cut into a first batch and the rest."""
        return os.path.join(self.train + "-first", str(batch))


def make(folder, programs, examples, batches):
    """Writes what is missing, and tells the oracle's AUC on the test data."""
    data = ClickSet(folder, examples)
    regatta = os.path.join(programs, "regatta")
    if not os.path.exists(os.path.join(data.train, "part-%05d.txt" % (FILES - 1))):
        synth(regatta, SOURCE + "&examples=%d" % examples, data.train, FILES)
    oracle = os.path.join(data.test, "oracle.txt")
    if not os.path.exists(oracle):
        told = synth(regatta, SOURCE + "&examples=%d&first=1000000" % TEST,
                     os.path.join(data.test, "files"), 1, "--oracle")
        tables.write(oracle, re.search(r"oracle AUC ([\d.]+)", told).group(1))
    with open(oracle) as f:
        data.oracle = float(f.read())
    for batch in batches:
        cut_first(data, batch)
    write_keys(data.keys)
    return data


def synth(regatta, url, out, files, *flags):
    command = [regatta, "data", "synth", url, "--out", out, "--files", str(files), *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    if done.returncode:
        sys.exit("run: making data failed: " + " ".join(command))
    return done.stdout


def cut_first(data, batch):
    folder = data.first(batch)
    if os.path.exists(os.path.join(folder, "rest-1")):
        return
    for worker in range(2):
        with open(os.path.join(data.train, "part-%05d.txt" % worker)) as f:
            lines = f.readlines()
        tables.write(os.path.join(folder, "first-%d" % worker), "".join(lines[:batch]))
        tables.write(os.path.join(folder, "rest-%d" % worker), "".join(lines[batch:]))


def write_keys(folder):
    """Files whose examples hold ids that no other example of the file has."""
    if os.path.exists(os.path.join(folder, "part-%05d.txt" % (KEY_FILES - 1))):
        return
    rng = random.Random(5)
    ids = list(range(1, KEY_EXAMPLES * SLOTS + 1))
    floats = " %d" % DENSE + " 0.5" * DENSE
    for number in range(KEY_FILES):
        rng.shuffle(ids)
        lines = []
        for i in range(KEY_EXAMPLES):
            own = ids[i * SLOTS:(i + 1) * SLOTS]
            lines.append("1 %d " % (i & 1) + " ".join("1 %d" % k for k in own) + floats + "\n")
        tables.write(os.path.join(folder, "part-%05d.txt" % number), "".join(lines))
