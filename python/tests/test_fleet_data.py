"""Generators, pipe commands, datasets, file systems."""
import subprocess
import sys

import numpy as np
import pytest

import regatta as rg
from regatta.distributed import fleet
from regatta.distributed.fleet.dataset import dataset as datasets

READER = """
import sys
import regatta.distributed.fleet as fleet

class Reader(fleet.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def read():
            words = line.split()
            if words[0] == "skip":
                yield None
                return
            yield [("click", [int(words[0])]), ("dense", [float(w) for w in words[1:3]]),
                   ("ids", [int(w) for w in words[3:]])]
        return read

if "numpy" in sys.modules or "regatta._core" in sys.modules:
    sys.exit("a reader should import neither numpy nor the engine")
Reader().run_from_stdin()
"""


def run(code, text, **kwargs):
    return subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, check=False,
        **kwargs,
    )


def test_a_reader_writes_multi_slot_text():
    done = run(READER, "1 0.5 2 7 8 9\nskip\n0 1 -1 3\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 1 2 0.5 2.0 3 7 8 9\n1 0 2 1.0 -1.0 1 3\n"


def test_generators_refuse_what_no_dataset_can_read():
    gen = fleet.MultiSlotDataGenerator()
    assert gen._gen_str([("a", [np.int64(3)]), ("b", (1.5,))]) == "1 3 1 1.5\n"
    with pytest.raises(ValueError, match="2 slots, but earlier ones|1 slots, but earlier ones 2"):
        gen._gen_str([("a", [1])])
    with pytest.raises(ValueError, match="slot 0 is called 'x', but 'a'"):
        gen._gen_str([("x", [1]), ("b", [1])])
    with pytest.raises(ValueError, match="slot 'a' is empty"):
        gen._gen_str([("a", []), ("b", [1])])
    with pytest.raises(ValueError, match="integers or floats"):
        gen._gen_str([("a", ["1"]), ("b", [1])])
    text = fleet.MultiSlotStringDataGenerator()
    assert text._gen_str([("a", ["7", "8"])]) == "2 7 8\n"


def test_batches_and_memory(capsys):
    class Reader(fleet.MultiSlotDataGenerator):
        def generate_sample(self, line):
            return [[("a", [i])] for i in range(5)]

        def generate_batch(self, samples):
            def batch():
                yield from reversed(samples)
            return batch

    reader = Reader()
    reader.set_batch(2)
    reader.run_from_memory()
    assert capsys.readouterr().out == "1 1\n1 0\n1 3\n1 2\n1 4\n"


@pytest.mark.parametrize(
    "command, expected",
    [
        ("python3.7 r.py a", "PY r.py a"),
        ("python r.py", "PY r.py"),
        ("zcat | python3 r.py", "zcat | PY r.py"),
        ("A=1 B=2 python3 r.py", "A=1 B=2 PY r.py"),
        ("cat python.txt", "cat python.txt"),
        ("/usr/bin/python3 r.py", "/usr/bin/python3 r.py"),
        ("cd x && python r.py", "cd x && PY r.py"),
    ],
)
def test_python_means_this_interpreter(command, expected):
    import shlex

    assert datasets.python_command(command) == expected.replace("PY", shlex.quote(sys.executable))


def model():
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        label = rg.static.data("label", [None, 1], "int64")
        dense = rg.static.data("dense", [None, 2], "float32")
        ids = rg.static.data("ids", [None, 1], "int64", lod_level=1)
        hidden = rg.static.nn.fc(dense, 4)
        y = rg.cast(label, "float32")
        cost = rg.mean(rg.nn.functional.square_error_cost(rg.static.nn.fc(hidden, 1), y))
    return main, startup, [label, dense, ids], cost


def test_slots_follow_the_variables():
    _, _, (label, dense, ids), _ = model()
    assert datasets._slots([label, dense, ids]) == [
        ("label", "ints", 1), ("dense", "floats", 2), ("ids", "ids", 1)]


def write_files(tmp_path, n=2, lines=5):
    files = []
    for f in range(n):
        path = tmp_path / f"part-{f}"
        path.write_text("".join(f"{i % 2} {i}.5 {f} {i} {i + 1}\n" for i in range(lines)))
        files.append(str(path))
    return files


@pytest.mark.parametrize("kind", [fleet.QueueDataset, fleet.InMemoryDataset])
def test_training_through_a_pipe_command(tmp_path, kind, monkeypatch):
    (tmp_path / "reader.py").write_text(READER)
    main, startup, inputs, cost = model()
    with rg.static.program_guard(main, startup):
        rg.optimizer.SGD(1e-3).minimize(cost)
    data = kind()
    data.init(batch_size=3, thread_num=2, use_var=inputs,
              pipe_command=f"python3.7 {tmp_path / 'reader.py'} config.yaml")
    data.set_filelist(write_files(tmp_path))
    if kind is fleet.InMemoryDataset:
        data.load_into_memory()
        assert data.get_memory_data_size() == 10
        data.local_shuffle()
        data.global_shuffle()
    exe, scope = rg.static.Executor(), rg.static.Scope()
    with rg.static.scope_guard(scope):
        exe.run(startup)
        before = np.array(scope.find_var("fc_0.w_0").get_tensor())
        exe.train_from_dataset(main, data, fetch_list=[cost], print_period=1)
        after = np.array(scope.find_var("fc_0.w_0").get_tensor())
    assert not np.array_equal(before, after)
    if kind is fleet.InMemoryDataset:
        data.release_memory()
        with pytest.raises(RuntimeError, match="load_into_memory"):
            data.local_shuffle()


def test_a_pipe_command_that_fails_is_named(tmp_path):
    main, startup, inputs, cost = model()
    data = fleet.InMemoryDataset()
    data.init(batch_size=3, use_var=inputs,
              pipe_command="python -c 'import sys; sys.exit(\"no luck\")'")
    data.set_filelist(write_files(tmp_path, 1))
    with pytest.raises(Exception, match="no luck"):
        data.load_into_memory()


def test_settings_that_cannot_be_honoured():
    _, _, inputs, _ = model()
    data = fleet.InMemoryDataset()
    data.update_settings(parse_ins_id=False, parse_content=False, input_type=0)
    data._set_use_ps_gpu(False)
    with pytest.warns(UserWarning, match="rows stay on the parameter servers"):
        data._set_use_ps_gpu(True)
    data.init(use_var=inputs, fs_name="", fs_ugi="")
    with pytest.raises(NotImplementedError, match="parse_ins_id"):
        data.update_settings(parse_ins_id=True)
    with pytest.raises(NotImplementedError, match="hdfs://host:port/path"):
        data.set_hdfs_config("hdfs://a", "u,p")
    with pytest.raises(TypeError, match="no setting 'batchsize'"):
        data.init(batchsize=3)
    with pytest.raises(ValueError, match="batch_size should be an integer of at least 1"):
        data.set_batch_size(0)
    with pytest.raises(NotImplementedError):
        data.slots_shuffle(["ids"])
    with pytest.raises(ValueError, match="no files"):
        data.load_into_memory()
    data.set_filelist(["/no/such/file"])
    with pytest.raises(FileNotFoundError, match="/no/such/file"):
        data.load_into_memory()
    with pytest.raises(NotImplementedError, match="InMemoryDataset"):
        fleet.QueueDataset().local_shuffle()


def test_passes_of_ps_gpu():
    with pytest.warns(UserWarning, match="rows stay on the parameter servers"):
        tiers = rg.base.core.PSGPU()
    with pytest.raises(RuntimeError, match="no pass has begun"):
        tiers.end_pass()
    tiers.begin_pass()
    with pytest.raises(RuntimeError, match="a pass has begun already"):
        tiers.begin_pass()
    tiers.finalize()
    tiers.begin_pass()
    tiers.end_pass()


def test_local_files(tmp_path):
    from regatta.distributed.fleet.utils.fs import FSFileExistsError, HDFSClient, LocalFS

    fs, root = LocalFS(), str(tmp_path)
    fs.mkdirs(root + "/a/b")
    fs.touch(root + "/a/f")
    assert fs.ls_dir(root + "/a") == (["b"], ["f"])
    assert fs.is_dir(root + "/a/b") and fs.is_file(root + "/a/f")
    with pytest.raises(FSFileExistsError):
        fs.mv(root + "/a/f", root + "/a/b")
    fs.mv(root + "/a/f", root + "/a/g")
    fs.delete(root + "/a")
    assert not fs.is_exist(root + "/a") and fs.ls_dir(root + "/a") == ([], [])
    with pytest.raises(Exception, match="hadoop_home"):
        HDFSClient("/no/hadoop", {}, sleep_inter=1).is_exist("/x")


def test_hdfs_by_its_command(tmp_path):
    """A stand-in for `hadoop` that keeps its files in a folder."""
    from regatta.distributed.fleet.utils import HDFSClient

    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "hadoop"
    script.write_text(f"""#!/bin/sh
shift
while [ "${{1#-D}}" != "$1" ]; do shift; done
verb=$1; shift
case $verb in
  -test) test $1 {root}$2;;
  -mkdir) mkdir -p {root}$2;;
  -touchz) : > {root}$1;;
  -put) cp $1 {root}$2;;
  -cat) cat {root}$1;;
  -rm) rm -r {root}$2;;
  -ls) for f in {root}$1/*; do
         if [ -d $f ]; then echo "drwxr-xr-x - u g 0 2024-01-01 00:00 $f"; else
         echo "-rw-r--r-- 1 u g 3 2024-01-01 00:00 $f"; fi; done;;
  *) echo "unknown $verb" >&2; exit 255;;
esac
""")
    script.chmod(0o755)
    client = HDFSClient(str(tmp_path), {"fs.default.name": "hdfs://x:1"}, sleep_inter=1)
    client.mkdirs("/d/e")
    (tmp_path / "local").write_text("abc\n")
    client.upload(str(tmp_path / "local"), "/d/f")
    assert client.is_file("/d/f") and client.is_dir("/d/e") and not client.is_exist("/nope")
    assert client.cat("/d/f") == "abc"
    assert client.ls_dir("/d") == (["e"], ["f"])
    client.delete("/d/f")
    assert not client.is_exist("/d/f")
    with pytest.raises(Exception, match="unknown -get"):
        client.download("/d/e", str(tmp_path / "x"))


def test_metrics_alone():
    from regatta.distributed.fleet import metrics

    fleet.init()
    assert metrics.auc([0, 1], [1, 0]) == 1.0
    assert metrics.auc([1, 0, 1], [1, 1, 0]) == 2.5 / 4
    assert metrics.auc([0.0], [3.0]) == 0.5
    assert metrics.mae(np.array([6.0]), 3) == 2.0
    assert metrics.rmse(18.0, 2.0) == 3.0
    assert metrics.sum(np.arange(3)).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="no worker has an example"):
        metrics.acc(0, 0)


def test_reader_scripts_start_fast():
    code = "import regatta.distributed.fleet as f, sys; f.MultiSlotDataGenerator; " \
           "print('numpy' in sys.modules, 'regatta._core' in sys.modules)"
    done = run(code, "")
    assert done.stdout.split() == ["False", "False"], done.stderr




def test_several_integers_per_line(tmp_path):
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        numbers = rg.static.data("numbers", [None, 3], "int64")
        total = rg.sum(rg.cast(numbers, "float32"))
        weight = rg.static.nn.fc(rg.cast(numbers, "float32"), 1)
        rg.optimizer.SGD(0.0).minimize(rg.mean(weight))
    path = tmp_path / "numbers"
    path.write_text("3 1 -2 3\n3 40 50 -60\n")
    data = fleet.QueueDataset()
    data.init(batch_size=2, use_var=[numbers])
    data.set_filelist([str(path)])
    seen = []

    class Handler(rg.static.FetchHandler):
        def handler(self, res_dict):
            seen.append(float(res_dict["total"].ravel()[0]))

    exe, scope = rg.static.Executor(), rg.static.Scope()
    exe.run(startup, scope=scope)
    handler = Handler({"total": total}, period_secs=0)
    assert exe.train_from_dataset(main, data, scope=scope, fetch_handler=handler) == (1, 2)
    assert seen == [32.0]


def test_bad_files_are_errors_of_their_kind(tmp_path):
    main = rg.static.Program()
    with rg.static.program_guard(main, rg.static.Program()):
        x = rg.static.data("x", [None, 2], "float32")
    (tmp_path / "bad").write_text("2 1 2\nfoo\n")
    data = rg.distributed.InMemoryDataset()
    data.init(batch_size=2, use_var=[x], thread_num=1)
    data.set_filelist([str(tmp_path / "bad")])
    with pytest.raises(ValueError, match="bad:2: column 1: expected the number of values"):
        data.load_into_memory()
    data.set_filelist([str(tmp_path / "absent")])
    with pytest.raises(FileNotFoundError, match="absent"):
        data.load_into_memory()
    data.init(batch_size=2, use_var=[x], thread_num=1, pipe_command="false")
    data.set_filelist([str(tmp_path / "bad")])
    with pytest.raises(rg.RegattaError, match="pipe command `false` ended with exit status 1"):
        data.load_into_memory()
