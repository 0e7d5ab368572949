"""Tests of the benchmark scripts that need no other system: python3 -m unittest discover bench/tests."""
import json
import os
import socket
import sys
import tempfile
import time
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from xml.etree import ElementTree

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "compare"))

import sheet
from harness import charts, figures, jobs, machine, programs, tables


class Figures(unittest.TestCase):
    def test_spread_leaves_out_what_is_missing(self):
        s = figures.spread([3.0, None, 1.0, 2.0])
        self.assertEqual((s.median, s.low, s.high, s.count), (2.0, 1.0, 3.0, 3))
        self.assertIsNone(figures.spread([None]))

    def test_ratios_are_taken_within_rounds(self):
        s = figures.ratio([10.0, 2.0, None], [5.0, 1.0, 1.0])
        self.assertEqual((s.low, s.median, s.high, s.count), (2.0, 2.0, 2.0, 2))
        self.assertIsNone(figures.ratio([1.0], [None]))

    def test_numbers_are_short(self):
        told = [figures.short(v) for v in (0.01234, 5.0, 999.4, 9999, 12345, 1.5e6, 2.5e9, None, 0)]
        self.assertEqual(told, ["0.0123", "5", "999", "10000", "12.3 k", "1.5 M", "2.5 G", "-", "0"])


class Tables(unittest.TestCase):
    def test_cells_cannot_break_a_table(self):
        text = tables.table(["a", "b"], [["x|y", "two\nlines"]])
        self.assertEqual(text.splitlines()[2], "| x\\|y | two lines |")
        with self.assertRaises(ValueError):
            tables.table(["a"], [["x", "y"]])

    def test_json_has_a_line_for_each_run(self):
        raw = {"machine": {"cores": 2}, "runs": [{"a": 1}, {"a": None}]}
        text = tables.as_json(raw)
        self.assertEqual(json.loads(text), raw)
        self.assertIn('\n  {"a": 1},\n', text)
        self.assertEqual(json.loads(tables.as_json({"runs": []})), {"runs": []})

    def test_reports_are_files(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = tables.save_report(folder, "x", "text\n", {"runs": []}, {"bars": "<svg/>"})
            self.assertEqual([os.path.basename(p) for p in paths], ["x.md", "x.json", "x-bars.svg"])
            self.assertEqual(sorted(os.listdir(folder)), sorted(["x.md", "x.json", "x-bars.svg"]))


class Charts(unittest.TestCase):
    def test_bars_are_svg_in_proportion(self):
        svg = charts.bars("a < b", [("g", [("one", 10.0, 9.0, 11.0, None), ("two", 5.0, 5.0, 5.0, None),
                                          ("three", None, None, None, None)])], "x/s")
        rects = [float(e.get("width")) for e in ElementTree.fromstring(svg).iter(
            "{http://www.w3.org/2000/svg}rect") if e.get("x")]
        self.assertEqual(len(rects), 2)
        self.assertAlmostEqual(rects[0], 2 * rects[1], delta=0.2)
        self.assertIn("does not work", svg)

    def test_lines_stay_inside(self):
        svg = charts.lines("t", {"a": [(1e6, 20.0), (5e7, 60.0)], "b": [(1e6, 1.0)]}, "rows", "ns")
        for c in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}circle"):
            self.assertTrue(80 <= float(c.get("cx")) <= 670 and 40 <= float(c.get("cy")) <= 370)
        with self.assertRaises(ValueError):
            charts.lines("t", {}, "x", "y")

    def test_one_point_and_zeros_have_axes(self):
        charts.lines("t", {"a": [(1.0, 0.0)]}, "x", "y")
        charts.lines("t", {"a": [(2.0, 3.0), (4.0, 3.0)]}, "x", "y", log_x=False, log_y=False)


class Jobs(unittest.TestCase):
    def test_lines_codes_and_memory(self):
        script = "import time; print('batch_id: 0, x', flush=True); x = bytearray(50 << 20); time.sleep(0.2)"
        done = jobs.run([jobs.Member("worker", [sys.executable, "-c", script])], timeout=30)
        self.assertEqual(done.codes, {"worker": 0})
        self.assertIsNone(done.failure())
        self.assertLess(done.first_time("batch_id: 0,"), 30)
        self.assertIsNone(done.first_time("nothing"))
        self.assertGreater(done.peak_mb["worker"], 50)

    def test_a_failure_is_told_in_a_line(self):
        script = "import sys; print('note'); print('ValueError: no such table', file=sys.stderr); sys.exit(3)"
        done = jobs.run([jobs.Member("worker", [sys.executable, "-c", script])], timeout=30)
        self.assertEqual(done.failure(), "worker ended with exit code 3; last line: ValueError: no such table")

    def test_nobody_is_waited_for_beyond_the_limit(self):
        forever = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
        done = jobs.run([jobs.Member("worker", forever)], timeout=0.5)
        self.assertTrue(done.timed_out)
        self.assertIn("did not end in time", done.failure())
        self.assertLess(done.seconds, 30)

    def test_servers_end_with_their_workers(self):
        server = jobs.Member("server", [sys.executable, "-c", "import time; time.sleep(600)"], ends_job=False)
        worker = jobs.Member("worker", [sys.executable, "-c", "print('done')"])
        done = jobs.run([server, worker], timeout=60, grace=0.1)
        self.assertEqual(done.codes, {"server": None, "worker": 0})
        self.assertIsNone(done.failure())

    def test_children_are_told_apart_by_their_environment(self):
        parent = ("import os, subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(0.3)'], "
                  "env=dict(os.environ, TRAINING_ROLE='PSERVER'))")
        done = jobs.run([jobs.Member("main", [sys.executable, "-c", parent])], timeout=30, role_of=programs.role)
        self.assertEqual(sorted(k.split(":")[0] for k in done.peak_mb), ["main", "server"])
        self.assertIsNone(programs.role({}))
        self.assertEqual(programs.role({"TRAINING_ROLE": "TRAINER"}), "worker")
        self.assertEqual(programs.role({"PADDLE_TRAINER_ID": "1"}), "worker")


def sample_runs():
    runs = []
    for number in range(2):
        for system, speed, auc in (("regatta", 30e3, 0.736), ("paddle", 12e3, 0.735)):
            for part in ("local", "async-2-1", "sync-2-1"):
                run = {"part": part, "batch": 512, "system": system, "round": number}
                if (system, part) == ("paddle", "sync-2-1"):
                    run["error"] = "worker:0 ended with signal 11; last line: FatalError"
                else:
                    run.update(examples_per_sec=speed * (1 + number), auc=auc, worker_mb=100.0,
                               memory_mb=100.0 if system == "regatta" else 400.0,
                               first_step_s=0.1 if system == "regatta" else 8.0)
                    if system == "regatta" and part == "async-2-1":
                        run["compute_per_sec"] = 40e3 * (1 + number)
                    if part == "sync-2-1":
                        run["over_async"] = [0.9, 0.7 + number / 10, 0.85]
                runs.append(run)
            runs.append({"part": "keys-2600", "batch": None, "system": system, "round": number,
                         "keys_per_sec": speed})
            runs.append({"part": "files", "batch": None, "system": system, "round": number,
                         "save_s": 1e3 / speed, "load_s": 1e3 / speed})
    return runs


SETTINGS = {"examples": 400_000, "rounds": 2, "cores": [0, 1], "rows": 1_000_000, "oracle_auc": 0.844,
            "geo_steps": 100, "load_average": [1.0, 1.5], "paddle_setting": {"MKL_DEBUG_CPU_TYPE": "5"},
            "titles": {"local": "one process", "async-2-1": "async, 2 + 1", "sync-2-1": "sync, 2 + 1"}}


class Sheet(unittest.TestCase):
    def test_a_report_tells_speeds_ratios_and_what_does_not_work(self):
        text, raw, drawn = sheet.report(sample_runs(), machine.describe(), SETTINGS)
        self.assertIn("| one process | 512 | regatta | 45 k (30 k-60 k) |", text)
        self.assertIn("| one process | 512 | paddle | 18 k (12 k-24 k) | 2.5 (2.5-2.5) | 0.7350 (0.7350-0.7350) |", text)
        self.assertIn("does not work: worker:0 ended with signal 11", text)
        self.assertIn("| 2600 | paddle | 12 k (12 k-12 k) | 2.5 (2.5-2.5) |", text)
        self.assertEqual(len(raw["runs"]), len(sample_runs()))
        ElementTree.fromstring(drawn["batch-512"])

    def test_goals_are_judged(self):
        judged = {what: met for what, _, _, met in sheet.checks(sheet.Runs(sample_runs()), SETTINGS["titles"])}
        self.assertEqual(judged["one process, batch 512: speed over Paddle's"], "yes")
        self.assertEqual(judged["async, 2 + 1, batch 512: Paddle's memory over ours"], "yes")
        self.assertEqual(judged["2600 keys per batch: keys/s over Paddle's"], "no")
        self.assertEqual(judged["Paddle's time for saving over ours"], "no")
        self.assertEqual(judged["batch 512: sync over async, 2 + 1, as trained"], "yes")
        self.assertNotIn("batch 512: sync over async, 2 + 1, learning rate 0: the same zeros to skip in both", judged)

    def test_an_auc_among_those_of_other_seeds_is_level(self):
        def judged(ours):
            runs = [{"part": "local", "batch": 512, "system": system, "round": number, "auc": auc,
                     "examples_per_sec": 1e3}
                    for system, seeds in (("regatta", [ours] * 3), ("paddle", [0.70, 0.72, 0.74]))
                    for number, auc in enumerate(seeds)]
            return [met for what, _, _, met in sheet.checks(sheet.Runs(runs), {"local": "one process"})
                    if what.endswith("AUC")]

        self.assertEqual([judged(a) for a in (0.73, 0.71, 0.69)], [["yes"], ["level"], ["no"]])

    def test_parts_that_learn_nothing_are_judged_by_their_speed_alone(self):
        runs = [{"part": "sync-2-1-still", "batch": 512, "system": "regatta", "round": 0, "auc": 0.5,
                 "memory_mb": 100.0, "first_step_s": 0.1, "examples_per_sec": 30e3,
                 "over_async": [0.7, 0.95, 0.75]}]
        self.assertEqual(sheet.checks(sheet.Runs(runs), {"sync-2-1-still": "still"}), [
            ("batch 512: sync over async, 2 + 1, learning rate 0: the same zeros to skip in both", 0.75,
             "at least 0.8 (pairs: 0.70-0.95)", "no")])

    def test_the_speed_of_the_dense_layers_is_judged_where_it_was_measured(self):
        judged = {what: met for what, _, _, met in sheet.checks(sheet.Runs(sample_runs()), SETTINGS["titles"])}
        alone = "speed over that of the dense layers alone on one core"
        self.assertEqual(judged["async, 2 + 1, batch 512: " + alone], "no")
        self.assertNotIn("one process, batch 512: " + alone, judged)

    def test_regatta_alone_has_no_ratios(self):
        alone = [r for r in sample_runs() if r["system"] == "regatta"]
        text, _, _ = sheet.report(alone, machine.describe(), SETTINGS)
        self.assertNotIn("paddle |", text)


def script(name):
    """A script of this folder as a module."""
    loader = SourceFileLoader(name, os.path.join(os.path.dirname(HERE), name))
    module = module_from_spec(spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class Scripts(unittest.TestCase):
    def test_growth_is_tables_and_charts(self):
        runs = [dict(part="rows", size=n, pull_ns=20.0 + i, push_ns=30.0, create_ns=90.0, bytes_per_row=130.0,
                     pull_limit_ns=10.0, push_limit_ns=20.0) for i, n in enumerate((1_000_000, 50_000_000))]
        runs += [dict(part="workers", size=n, examples_per_sec=1e4, memory_mb=200.0, cpu_us_per_example=40.0)
                 for n in (1, 8)]
        text, drawn = script("scaling").report(runs, ["dims 128: needs 99.0 GiB"], machine.describe(), 1.0)
        self.assertIn("| 50 M | 21 | 10 | 30 | 20 | 90 | 130 |", text)
        self.assertIn("Left out for lack of memory: dims 128", text)
        self.assertEqual(sorted(drawn), ["rows", "workers"])
        for svg in drawn.values():
            ElementTree.fromstring(svg)

    def test_errors_of_predictions_are_told(self):
        runs = [dict(mode="async", batch=512, servers=1, workers=w, round=r, measured=100.0, predicted=p,
                     server_mb=50.0, predicted_mb=60.0)
                for r in range(3) for w, p in ((1, 110.0), (2, 80.0))]
        text = script("plan_check").report(runs)
        self.assertIn("| async | 512 | 1 | 1 | 100 | 110 | +10 % | 50 | 60 |", text)
        self.assertIn("Median error 15 %, largest 20 %.", text)

    def test_chunks_of_a_wire_follow_each_other(self):
        wire = script("slow_link").Wire(1000.0, 0.5)
        for size, now, due in ((100, 10.0, 10.6), (200, 10.0, 10.8), (100, 20.0, 20.6)):
            self.assertAlmostEqual(wire.due(size, now), due)
        self.assertEqual(wire.carried, 400)

    def test_a_relay_carries_all_bytes_no_faster_than_its_link(self):
        sent = bytes(range(256)) * 2000
        with socket.create_server(("127.0.0.1", 0)) as target:
            relay = script("slow_link").Relay(target.getsockname()[1], 5e6, 0.02, apart=False)
            began = time.monotonic()
            with socket.create_connection(("127.0.0.1", relay.port), timeout=10) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                server, _ = target.accept()
                with server, server.makefile("rb") as f:
                    got = f.read()
            took = time.monotonic() - began
            relay.close()
        self.assertEqual((got, relay.up.carried), (sent, len(sent)))
        self.assertGreaterEqual(took, len(sent) / 5e6 + 0.02)

    def test_a_worker_that_did_not_use_tcp_is_found(self):
        told = lambda kind: (0.0, "worker 0", "connected to server 0 at 127.0.0.1:1 (%s)" % kind)
        tcp = script("slow_link").carried_over_tcp
        self.assertTrue(tcp([told("tcp")], 1))
        self.assertFalse(tcp([told("tcp"), told("unix")], 2))
        self.assertFalse(tcp([told("tcp")], 2))

    def test_candidates_are_compared_within_rounds(self):
        runs = [dict(model="rows", mode="async", set=s, speed=v * n, seconds=1.0, auc=0.7, up=2.0, down=3.0)
                for n in (1, 2, 10) for s, v in (("a", 100.0), ("b", 150.0))]
        lines = script("slow_link").rows_of(runs, ["a", "b"])
        self.assertEqual([line[4] for line in lines], ["1.00 (1.00-1.00)", "1.50 (1.50-1.50)"])


if __name__ == "__main__":
    unittest.main()
