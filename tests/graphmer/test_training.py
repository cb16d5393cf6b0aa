"""Training of GraphMER: exact resume, curriculum, and XLA as the CPU."""

from __future__ import annotations

import json
import signal
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from helpers.machine import xla
from helpers.run import checkpoint
from tests import harness
from tests.test_resume import SLOW_ON_XLA, fingerprint, result

from .batches import library

DRIVER = Path(__file__).parents[1] / "graph_run.py"
ON_XLA = pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
CURRICULUM = {
    "training_data.short_to_long_curriculum.enabled": True,
    "training_data.short_to_long_curriculum.schedule": "[{steps: 0, max_seq_len: 56}, {steps: 6, max_seq_len: 72}]",
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> str:
    return str(library(tmp_path_factory.mktemp("library")))


def run(output_dir: Path, fresh: bool = False, **options) -> subprocess.CompletedProcess:
    return harness.run(DRIVER, output_dir, json.dumps(options), xla=options["kind"] == "xla", fresh=fresh)


@pytest.fixture(scope="module")
def undisturbed(sources, tmp_path_factory):
    """Folder and result of a run with dropout through two lengths, by kind."""
    runs: dict[str, tuple[Path, dict]] = {}

    def of(kind: str) -> tuple[Path, dict]:
        if kind not in runs:
            folder = tmp_path_factory.mktemp(kind)
            runs[kind] = folder, result(run(folder, kind=kind, data=sources, changes=CURRICULUM))
        return runs[kind]

    return of


@pytest.mark.once
def test_the_curriculum_changes_the_length_at_its_step_and_the_run_has_its_steps(undisturbed):
    _, outcome = undisturbed("cpu")
    assert outcome["train"]["steps"] == 12
    assert outcome["shapes"] == [[8, 32]] * 6 + [[8, 48]] * 6


@pytest.mark.once
def test_logs_hold_every_term_of_the_loss_and_their_weighted_sum_is_it(undisturbed):
    from helpers.graphmer.configuration import override, read_configuration
    from tests.graph_run import SMALL

    _, outcome = undisturbed("cpu")
    weights = override(read_configuration("cpu"), SMALL).graphmer_config(600, 30).weights()
    for entry in outcome["terms"]:
        total = sum(weight * entry[name] for name, weight in weights.items() if weight)
        assert entry["loss"] == pytest.approx(total, rel=1e-3)


@pytest.mark.parametrize("kind", SLOW_ON_XLA)
def test_a_run_killed_after_the_length_changed_ends_with_identical_weights(kind, undisturbed, sources, tmp_path):
    folder, reference = undisturbed(kind)
    killed = run(tmp_path, kind=kind, data=sources, changes=CURRICULUM, kill_step=10)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert checkpoint.newest_whole(tmp_path)[0].name == "checkpoint-8"
    resumed = result(run(tmp_path, fresh=kind == "cpu", kind=kind, data=sources, changes=CURRICULUM))
    assert resumed["train"]["resumed_from_step"] == 8
    assert resumed["losses"] == reference["losses"]
    assert fingerprint(tmp_path, 12) == fingerprint(folder, 12)


@pytest.fixture(scope="module")
def on_xla(sources, tmp_path_factory):
    """Twelve steps on 8 devices and the same on a CPU, without dropout, logged at every fourth."""
    still = {"model.dropout": 0.0, "model.relation_dropout": 0.0, "run.log_interval": 4}
    return [
        result(run(tmp_path_factory.mktemp(kind), kind=kind, data=sources, changes=CURRICULUM | still))
        for kind in ("xla", "cpu")
    ]


@pytest.mark.slow
@ON_XLA
def test_eight_xla_devices_and_a_cpu_give_the_same_losses_in_fp32(on_xla):
    ours, reference = on_xla
    assert ours["losses"] == pytest.approx(reference["losses"], rel=1e-4)
    assert ours["eval_losses"] == pytest.approx(reference["eval_losses"], rel=1e-4)


@pytest.mark.slow
@ON_XLA
def test_each_length_compiles_once_and_no_value_leaves_the_device_between_logs(on_xla):
    ours, _ = on_xla
    assert ours["xla"]["host_syncs_per_step"] == 0
    moved, compiled = (
        {step for step, (before, after) in enumerate(pairwise(counts), start=2) if after > before}
        for counts in (ours["transfers"], ours["compiles"])
    )
    # What a log or an evaluation moves or compiles is seen at the end of the step after it; step 1 is logged too.
    assert moved <= {2, 5, 9}
    assert 7 in compiled <= {2, 5, 7, 9}  # the second length begins with step 7, its evaluation is at step 8
