"""Training of GraphMER: exact resume and curriculum, on a CPU and on XLA."""

import functools
from pathlib import Path

import pytest

from helpers.graphmer.configuration import override, read_configuration
from tests import harness
from tests.graph_run import SMALL
from tests.harness import assert_killed_run_ends_as, result
from tests.train.test_trainer import ON_XLA, SLOW_ON_XLA

CURRICULUM = {
    "training_data.short_to_long_curriculum.enabled": True,
    "training_data.short_to_long_curriculum.schedule": "[{steps: 0, max_seq_len: 56}, {steps: 6, max_seq_len: 72}]",
}


@pytest.fixture(scope="module")
def sources(library) -> str:
    return str(library)


run = functools.partial(harness.train, "tests.graph_run")


@pytest.fixture(scope="module")
def undisturbed(sources, tmp_path_factory):
    """Folder and result of a run with dropout through two lengths, by kind."""

    @functools.cache
    def of(kind: str) -> tuple[Path, dict]:
        folder = tmp_path_factory.mktemp(kind)
        return folder, result(run(folder, kind=kind, data=sources, changes=CURRICULUM))

    return of


@pytest.mark.once
def test_the_curriculum_changes_the_length_at_its_step(undisturbed):
    _, outcome = undisturbed("cpu")
    assert outcome["train"]["steps"] == 12
    assert outcome["shapes"] == [[8, 32]] * 6 + [[8, 48]] * 6
    weights = override(read_configuration("rtx3050"), SMALL).graphmer_config(600, 30).weights()
    for entry in outcome["terms"]:  # every term is in the logs, and their weighted sum is the loss
        assert entry["loss"] == pytest.approx(sum(weight * entry[name] for name, weight in weights.items()), rel=1e-3)


@pytest.mark.parametrize("kind", SLOW_ON_XLA)
def test_a_run_killed_after_the_length_changed_ends_with_identical_weights(kind, undisturbed, sources, tmp_path):
    options = {"kind": kind, "data": sources, "changes": CURRICULUM}
    assert_killed_run_ends_as(undisturbed(kind), run, tmp_path, 10, 8, fresh=kind == "cpu", **options)


@pytest.mark.slow
@ON_XLA
def test_eight_xla_devices_and_a_cpu_give_the_same_losses_in_fp32(sources, tmp_path):
    # At a small rate, since AdamW's first steps turn the rounding of a small gradient into a step of the whole rate.
    still = {"model.dropout": 0.0, "model.relation_dropout": 0.0, "run.log_interval": 4, "optimizer.lr": 1e-4}
    ours, reference = (
        result(run(tmp_path / kind, kind=kind, data=sources, changes=CURRICULUM | still)) for kind in ("xla", "cpu")
    )
    assert ours["losses"] == pytest.approx(reference["losses"], rel=1e-4)
    assert ours["late"]["transfers"] == 0
