"""Real Tuners of Ray's, on two processors: stopped trials, failures, and a Tuner that is restored after a kill."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.tune", reason="Ray Tune is not installed")

pytestmark = pytest.mark.slow  # a process a trial; the same calls are made without Ray's processes in test_search

BEGIN = """
import math, os, sys
sys.path.insert(0, {support!r})
os.environ |= {{"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_USAGE_STATS_ENABLED": "0"}}
import ray
from ray import tune
from haltune.ray_tune import HaltuneScheduler, HaltuneSearch
from haltune.errors import InvalidInput

folder, SPACE = sys.argv[1], {{"opt": {{"lr": tune.uniform(0.001, 0.3)}}, "kind": "net"}}

def value(lr, epoch):
    return (0.95 - 3 * abs(lr - 0.1)) * epoch / (epoch + 1)

def train(config):
    assert config["kind"] == "net"
    for epoch in range(1, 10):
        tune.report({{"acc": value(config["opt"]["lr"], epoch)}})

def tuner(trainable, search=None, scheduler=None, space=SPACE, samples=6, name="one", **options):
    options |= {{"search_alg": search, "scheduler": scheduler, "num_samples": samples}}
    told = tune.TuneConfig(metric="acc", mode="max", **options)
    return tune.Tuner(trainable, param_space=space, tune_config=told,
                      run_config=tune.RunConfig(storage_path=folder, name=name, verbose=0))

if __name__ == "__main__":
    ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
"""

TOGETHER = """
    points = [{"opt": {"lr": lr}} for lr in (0.1, 0.09, 0.3, 0.29, 0.28, 0.27)]
    search = HaltuneSearch(max_epochs=9, min_epochs=4, seed=0, store=folder + "/s.db", points_to_evaluate=points)
    results = tuner(train, search, HaltuneScheduler(), max_concurrent_trials=2).fit()
    epochs = sorted(r.metrics["training_iteration"] for r in results)
    assert 4 <= epochs[0] < 9 == epochs[-1], epochs
    assert len(search.reasons) == sum(n < 9 for n in epochs), search.reasons
    curves = {tuple(r.values) for r in search.study.trials}
    for r in results:
        assert any(tuple(value(r.config["opt"]["lr"], e) for e in range(1, len(c) + 1)) == c for c in curves)
    import haltune
    assert len(haltune.load_study(folder + "/s.db").trials) == len(search.study.trials)
"""

ALONE = """
    def faulty(config):
        if config["k"] == 1:
            raise ValueError("a bug")
        for epoch in range(1, 10):
            tune.report({"acc": math.nan if config["k"] == 2 else value(config["k"] / 40, epoch)})

    scheduler = HaltuneScheduler(9, min_epochs=3)
    results = tuner(faulty, None, scheduler, {"k": tune.grid_search([4, 1, 2, 12, 5, 11])}, 1).fit()
    by = {r.config["k"]: r.metrics.get("training_iteration", 0) if r.metrics else 0 for r in results}
    assert len(results.errors) == 1
    assert by[2] == 3 and by[4] == 9, by
    assert 3 <= min(by[11], by[12]) < 9, by
    assert sorted(r.status.value for r in scheduler.study.trials).count("stopped") == len(scheduler.reasons)

    try:
        tuner(train, None, HaltuneScheduler(), samples=1, name="two").fit()
    except Exception as error:
        assert "max_epochs" in str(error), error
    else:
        raise AssertionError("no error")
    bad = HaltuneSearch(max_epochs=9)
    try:
        tuner(train, bad, None, {"opt": {"lr": tune.grid_search([1, 2])}}, name="three").fit()
    except Exception as error:
        assert "tune.choice" in str(error), error
    else:
        raise AssertionError("no error")
"""

KILLED = """
    def slow(config):
        for epoch in range(1, 10):
            if os.path.exists(folder + "/kills") and epoch == 3:
                done = [n for n in os.listdir(folder) if n.startswith("done")]
                if len(done) == 2:
                    os.remove(folder + "/kills")
                    os.kill(int(open(folder + "/driver").read()), 9)
            tune.report({"acc": value(config["opt"]["lr"], epoch)})
        open(folder + f"/done-{config['opt']['lr']}", "w").close()

    open(folder + "/driver", "w").write(str(os.getpid()))
    if tune.Tuner.can_restore(folder + "/one"):
        t = tune.Tuner.restore(folder + "/one", slow)
    else:
        open(folder + "/kills", "w").close()
        t = tuner(slow, HaltuneSearch(max_epochs=9, seed=0, store=STORE), None, max_concurrent_trials=1, samples=5)
    results = t.fit()
    study = t._local_tuner.get_results and t._local_tuner._tune_config.search_alg.study
    assert len(results) == 5 and not results.errors
    assert {len(r.values) for r in study.trials} == {9}, study.trials
    assert {r.config["opt/lr"] for r in study.trials} >= {r.config["opt"]["lr"] for r in results}
    assert len({r.config["opt"]["lr"] for r in results}) == 5
    if folder + "/s.db" not in study.store.url:  # in a file are those, too, of which Tune had not heard
        assert len(study.trials) == 5
"""


def program(text: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    source = BEGIN.format(support=str(Path(__file__).parents[1] / "support")) + text + "    print('done')\n"
    (folder / "program.py").write_text(source)
    return subprocess.run(
        [sys.executable, "-W", "ignore", str(folder / "program.py"), str(folder)],
        env=os.environ | {"RAY_CHDIR_TO_TRIAL_DIR": "0"},
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.mark.parametrize("text", [TOGETHER, ALONE], ids=["together", "alone"])
def test_a_tuner_is_stopped_by_haltune(text, tmp_path):
    ran = program(text, tmp_path)
    assert ran.stdout.endswith("done\n"), ran.stdout[-3000:] + ran.stderr[-5000:]


@pytest.mark.parametrize("store", ["None", 'folder + "/s.db"'], ids=["memory", "file"])
def test_a_tuner_that_was_killed_is_restored_with_its_search(store, tmp_path):
    killed = KILLED.replace("STORE", store)
    assert program(killed, tmp_path).returncode == -9
    assert (tmp_path / "one").exists()
    ran = program(killed, tmp_path)
    assert ran.stdout.endswith("done\n"), ran.stdout[-3000:] + ran.stderr[-5000:]
