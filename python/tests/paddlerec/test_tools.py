"""PaddleRec's own tools, unchanged, on its own folders and sample data. Needs PADDLEREC."""
import pytest

import folders
import harness
import table
import workspace

pytestmark = pytest.mark.skipif(harness.missing() is not None, reason=str(harness.missing()))
PS_OPTIONS = ["runner.thread_num=1", "runner.epochs=2", "runner.train_batch_size=10",
              "runner.print_interval=1"]


STATIC = [folder for folder in folders.FOLDERS if folder.static and not folder.dynamic_only]


@pytest.mark.parametrize("folder", STATIC, ids=lambda folder: folder.name)
def test_static_trainer(folder, tmp_path):
    harness.need_packages(folder.name)
    place = workspace.copy(workspace.checkout(), folder.name, tmp_path)
    text = harness.run(table.command(folder, folder.name, "static"), cwd=place, root=tmp_path)
    assert "epoch: 0 done" in text
    losses = [value for name in ("cost", "Loss", "loss") for value in harness.printed(text, name)]
    harness.assert_finite(losses, "loss")
    for suffix in ("pdparams", "pdopt", "pdmodel"):
        assert (place / "saved" / "0" / f"rec_static.{suffix}").is_file(), suffix


def test_most_folders_have_a_static_form_that_trains():
    assert len(STATIC) >= 32, [folder.name for folder in STATIC]


@pytest.mark.parametrize("folder", ["rank/deepfm", "rank/wide_deep", "multitask/esmm"])
def test_inference_model_by_names_of_the_config(folder, tmp_path):
    """`runner.use_inference` looks variables up by the names that Paddle gives them."""
    workspace.copy(workspace.checkout(), folder, tmp_path)
    harness.run(["tools/static_trainer.py", "-m", f"models/{folder}/config.yaml", "-o",
                 "runner.epochs=1", "runner.use_inference=True", "runner.model_save_path=saved"],
                cwd=tmp_path)
    for suffix in ("pdmodel", "pdiparams"):
        assert (tmp_path / "saved" / "0" / f"rec_inference.{suffix}").is_file(), suffix


@pytest.mark.skipif(not harness.OWN_RUNNER, reason="PaddlePaddle 2.6.2 has no launch_ps")
@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
@pytest.mark.parametrize("folder, reader", [("rank/dnn", "criteo_reader"),
                                            ("rank/wide_deep", "benchmark_reader")])
def test_static_ps_trainer(folder, reader, mode, tmp_path):
    workspace.copy(workspace.checkout(), folder, tmp_path)
    text = harness.run(
        ["-m", "paddle.distributed.launch_ps", "--worker_num", "1", "--server_num", "1",
         "tools/static_ps_trainer.py", "-m", f"models/{folder}/config_cpups.yaml", "-o",
         f"runner.sync_mode={mode}", "runner.geo_step=2", f"runner.train_reader_path={reader}",
         *PS_OPTIONS], cwd=tmp_path)
    assert text.count("Run Success, Exit.") == 2, "one worker and one server end well"
    # 80 lines in batches of 10, twice.
    costs = harness.printed(text, "cost")
    assert len(costs) == 16, costs
    harness.assert_finite(costs, "cost")
    assert (tmp_path / "train_result_dict.txt").is_file()
    assert any((tmp_path / "model" / "1").iterdir()), "no model was saved"
