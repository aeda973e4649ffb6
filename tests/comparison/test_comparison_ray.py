"""Runs on a Ray cluster: the same results, whatever order they end in, and whatever is lost on the way."""

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from hf_posenc import Comparison
from hf_posenc.comparison import execute
from hf_posenc.comparison.engine import Engine
from hf_posenc.errors import Interrupted, UserError
from tests.support.comparison import done_run, printed, quiet, toy

BROKEN = """
from hf_posenc import PositionScheme

class Broken(PositionScheme):
    name = "broken"

    def embed(self, x, tokens):
        with open({tries!r}, "a") as file:
            file.write("once more\\n")
        raise ValueError("no bananas")
"""


class Threads(Engine):
    """A cluster of four threads, in which runs take no time; the last of those that are waiting ends first."""

    most = None
    at_once = 4
    where = "on four threads"
    kept = "what is finished is kept."
    submitted: list[str] = []
    error: BaseException | None = None

    def __init__(self, plan, keep_models):
        type(self).submitted = []
        self.closed = False

    def submit(self, data, run, work, tokenizer, rate, majority):
        self.submitted.append(run.name)
        rows = done_run(data.plan, run, rate=0.001 * run.factor if run.factor else rate)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: (rows, 3.0))

    def result(self, future, work):
        if self.error is not None:
            raise self.error
        return future.result()


@pytest.fixture
def threads(monkeypatch, pretended):
    monkeypatch.setitem(sys.modules, "hf_posenc.comparison.cluster", SimpleNamespace(RayCluster=Threads))
    monkeypatch.setattr(Threads, "error", None)
    return Threads


def test_trials_come_before_the_runs_that_need_them_and_all_others_at_once(tmp_path, threads):
    plan, console = toy(search=[1, 2], tasks=["probes", "halves"]), quiet()
    made = execute(plan, tmp_path, ray=True, console=console)
    assert (len(made.done), made.failed) == (12, {})
    assert all("rate" in name for name in threads.submitted[:8])
    assert sorted(threads.submitted[8:]) == sorted(run.name for run in plan.runs())
    assert "12 of 12 runs to make, about 0:00:03 on four threads." in printed(console)
    assert "[1 of 12] probes-none-rate1x-seed1000000: done in 0:00:03" in printed(console)
    assert set(Comparison(tmp_path).table["rate"].dropna()) == {0.001}


def test_ctrl_c_leaves_what_is_finished_and_no_lock(tmp_path, threads, monkeypatch):
    plan = toy(tasks=["probes", "halves"])
    assert len(execute(toy(tasks=["probes"]), tmp_path, ray=True, console=quiet()).done) == 2
    with monkeypatch.context() as patched:
        patched.setattr(threads, "error", KeyboardInterrupt())
        with pytest.raises(Interrupted, match=r"^what is finished is kept\.$"):
            execute(plan, tmp_path, ray=True, console=quiet())
    made = execute(plan, tmp_path, console=quiet())
    assert (len(made.done), len(made.skipped), made.elsewhere) == (2, 2, [])


def test_without_ray_the_error_names_the_extra(tmp_path, run, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == "ray" else find(name, *of))
    with pytest.raises(UserError, match=r"^ray=True needs Ray, .* pip install 'hf-posenc\[ray\]'"):
        execute(toy(), tmp_path / "results", ray=True, console=quiet())
    code, _, err = run("compare", "--data", "halves", "--schemes", "none", "-o", tmp_path / "results", "--ray")
    assert (code, "--ray needs Ray, which isn't installed: pip install 'hf-posenc[ray]'" in err) == (2, True), err
    assert not (tmp_path / "results").exists()


@pytest.mark.slow  # Ray, and four processes that import PyTorch
def test_a_cluster_that_loses_a_machine_makes_the_results_of_one_process(tmp_path, monkeypatch):
    """A run that fails is tried three times, and keeps its reason; what one machine had begun another one makes."""
    pytest.importorskip("ray", reason="ray isn't installed: pip install 'hf-posenc[ray]'")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    import ray
    from ray.cluster_utils import Cluster

    # Ray puts the machine's address in the place of 127.0.0.1, which needs a network that lets it in.
    monkeypatch.setattr("ray._private.services.get_node_ip_address", lambda *_: "127.0.0.1")
    machine = {"num_cpus": 1, "object_store_memory": 2**27, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args={**machine, "include_dashboard": False})
    second = cluster.add_node(**machine)
    lost: list[int] = []

    class Watched(Console):
        def print(self, text="", **options):
            super().print(text, **options)
            if "done in" in text and not lost:
                lost.append(len([*(tmp_path / "ray" / "runs").iterdir()]))
                cluster.remove_node(second, allow_graceful=False)

    own, tries = tmp_path / "broken.py", tmp_path / "tries"
    own.write_text(BROKEN.format(tries=str(tries)))
    fields = {"schemes": ["none", "rope", "broken"], "scheme_files": [str(own)], "test_lengths": [32], "threads": 1}
    plan = toy(**fields, tasks=[{"data": "probes", "probes": ["order_near"]}, "halves"])
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        console = Watched(file=StringIO(), width=200)
        made = execute(plan, tmp_path / "ray", ray=True, keep_models=True, console=console)
        assert ray.is_initialized()  # it was there before
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert lost == [1]
    assert made.failed == dict.fromkeys(("probes-broken-seed0", "halves-broken-seed0"), "no bananas")
    assert Comparison(tmp_path / "ray").failed == made.failed
    assert len(tries.read_text().splitlines()) >= 6
    assert execute(plan, tmp_path / "one", keep_models=True, console=quiet()).failed
    tables = [Comparison(tmp_path / name).table.drop(columns="seconds") for name in ("ray", "one")]
    assert tables[0].equals(tables[1])
    weights = [tmp_path / name / "models" / "halves-rope-seed0" / "model.safetensors" for name in ("ray", "one")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
