"""helpers.train.trainer: a run that is disturbed, on a CPU and on eight XLA devices, ends with the weights of one that was not."""

import functools
import math
import os
import random
import signal
from pathlib import Path

import pytest
import torch

from helpers.machine import xla
from helpers.run import checkpoint
from helpers.train.interruption import Stops, is_out_of_memory
from tests import harness
from tests.harness import fingerprint, result
from tests.hostile import MARKER, payload
from tests.training_run import DEFAULTS, main

LAST = 12
ONCE = pytest.mark.once
ON_XLA = pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
KINDS = [pytest.param("cpu", marks=ONCE), pytest.param("xla", marks=ON_XLA)]
SLOW_ON_XLA = [KINDS[0], pytest.param("xla", marks=[ON_XLA, pytest.mark.slow])]
SPLIT_OVER_8 = "{devices=[8,1]0,1,2,3,4,5,6,7}"
QUIET = {"compiles": 0, "transfers": 0}  # what may happen in a step after the first on XLA
TINY = {"model": "llama", "width": 16, "blocks": 16, "steps": 4, "save_steps": 2, "accumulation": 1}

run = functools.partial(harness.train, "tests.training_run")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    @functools.cache
    def of(kind: str) -> tuple[Path, dict]:
        folder = tmp_path_factory.mktemp(kind)
        return folder, result(run(folder, kind=kind))

    return of


def names(folder: Path) -> list[str]:
    return [path.name for path in checkpoint.listed(folder)]


def stopped(folder: Path, message: str, **options):
    """A run that ends with an error, whose message it has."""
    process = run(folder, **options)
    assert process.returncode == 1 and message in process.stderr, process.stderr[-3000:]
    return process


# ---- killed, stopped, resumed


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_and_stopped_run_ends_with_identical_weights(kind, undisturbed, tmp_path):
    folder, reference = undisturbed(kind)
    chance = random.Random(20261120)
    assert run(tmp_path, kind=kind, kill_step=chance.randint(5, 7)).returncode == -signal.SIGKILL
    assert checkpoint.newest(tmp_path) == (tmp_path / "checkpoint-4", [])
    if kind == "cpu":  # what a disk holds does not hang on the device
        assert run(tmp_path, kind=kind, kill_write=chance.randint(2, 20)).returncode == -signal.SIGKILL
        assert checkpoint.newest(tmp_path) == (tmp_path / "checkpoint-4", ["checkpoint-8"])
    stopped(tmp_path, "Stopped: SIGTERM at step 10: checkpoint-10 is written", kind=kind, signals=[(10, "SIGTERM")])
    resumed = result(run(tmp_path, fresh=kind == "cpu", kind=kind))
    assert resumed["train"]["resumed_from_step"] == 10
    assert resumed["losses"] == reference["losses"] and resumed["eval_losses"] == reference["eval_losses"]
    assert fingerprint(tmp_path, LAST) == fingerprint(folder, LAST)


@ONCE
def test_the_stop_button_and_max_hours_stop_and_later_cells_evaluate(undisturbed, tmp_path):
    folder, reference = undisturbed("cpu")
    interrupted = stopped(tmp_path, "Stopped: SIGINT at step 2", signals=[(2, "SIGINT")], then_evaluate=True)
    assert math.isfinite(float(interrupted.stdout.rsplit("EVALUATED", 1)[1].split()[0]))
    stopped(tmp_path, "Stopped: max_hours=1e-09 at step 3", max_hours=1e-9)
    ended = result(run(tmp_path))
    for name in ("losses", "eval_losses", "best_step"):
        assert ended[name] == reference[name]
    again = result(run(tmp_path))  # is not trained further
    assert again["train"]["steps"] == LAST and again["train"]["examples_per_second"] > 0
    assert fingerprint(tmp_path, LAST) == fingerprint(folder, LAST)


@ONCE
def test_a_finished_run_goes_on_to_more_steps(tmp_path):
    result(run(tmp_path, steps=6))
    longer = result(run(tmp_path))
    assert longer["train"]["resumed_from_step"] == 6 and longer["train"]["steps"] == LAST


@ONCE
def test_a_full_disk_stops_the_run_by_name_and_keeps_the_older_checkpoint(undisturbed, tmp_path):
    folder, _ = undisturbed("cpu")
    message = f"CheckpointNotWritten: checkpoint-4 was not written to output_dir={str(tmp_path)!r}"
    full = stopped(tmp_path, message, file_limit=50_000)
    assert "File too large" in full.stderr and "newest whole checkpoint is checkpoint-0" in full.stderr
    assert checkpoint.newest(tmp_path) == (tmp_path / "checkpoint-0", ["checkpoint-4"])
    result(run(tmp_path))
    assert fingerprint(tmp_path, LAST) == fingerprint(folder, LAST)


@ONCE
def test_a_run_stays_in_its_folder_and_evaluates_only_if_it_is_to(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    relative = os.path.relpath(tmp_path / "run")
    ended = result(run(relative, **TINY, elsewhere=str(tmp_path / "elsewhere"), eval_strategy="no"))
    assert ended["eval_losses"] == [] and names(tmp_path / "run") == ["checkpoint-4", "checkpoint-2"]
    assert not any((tmp_path / "elsewhere").iterdir())


@ONCE
@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth"])
def test_no_pickle_of_a_checkpoint_is_run(name, tmp_path):
    main(str(tmp_path / "run"), DEFAULTS | TINY | {"steps": 2})
    newest = tmp_path / "run/checkpoint-2"
    torch.save({"state": payload(tmp_path)}, newest / name)
    (newest / checkpoint.SEAL).unlink()
    checkpoint.seal(newest)
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        main(str(tmp_path / "run"), DEFAULTS | TINY)
    assert not (tmp_path / MARKER).exists() and not [*newest.glob("training_args.bin")]


# ---- signals


def asked_to_stop(stops: Stops) -> bool:
    from transformers import TrainerControl, TrainerState

    control = TrainerControl()
    stops.on_step_end(None, TrainerState(), control)
    return control.should_save and control.should_training_stop


@ONCE
def test_a_signal_stops_at_a_step_and_a_second_interrupt_at_once():
    before = signal.getsignal(signal.SIGTERM)
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stops = Stops()
    with stops.listening():
        signal.raise_signal(signal.SIGHUP)  # as under nohup
        assert not asked_to_stop(stops)
        signal.raise_signal(signal.SIGTERM)
        assert asked_to_stop(stops) and stops.reason == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
    signal.signal(signal.SIGHUP, ignored)


# ---- numbers that are none, memory that does not suffice


@pytest.mark.parametrize("kind", SLOW_ON_XLA)
@pytest.mark.parametrize("fault", [{"nan_step": 6}, {"nan_gradient_step": 8}])
def test_what_is_no_number_stops_the_run_and_is_in_no_checkpoint(kind, fault, tmp_path):
    process = stopped(tmp_path, "NonFiniteLoss: the loss", kind=kind, logging_steps=5, **fault)
    assert "at step 8; nothing was saved since checkpoint-4" in process.stderr
    assert "Lower learning_rate (now 0.003) or set precision='fp32' (now 'fp32')" in process.stderr
    assert names(tmp_path) == ["checkpoint-4", "checkpoint-0"]


@ONCE
def test_a_run_whose_gradients_overflow_all_the_time_stops(tmp_path):
    message = "fp16 skips steps, and its loss scale is below 1: gradients overflow"
    stopped(tmp_path, message, accumulation=1, scale=2.0, overflows=[2, 3, 4])


LARGE = {"batch_size": 64, "accumulation": 1, "blocks": 64, "steps": 3, "save_steps": 3, "dropout": 0.0}


@pytest.mark.parametrize("kind", SLOW_ON_XLA)
def test_out_of_memory_halves_the_micro_batch_and_keeps_the_result(kind, tmp_path):
    options = {**LARGE, "kind": kind, "eval_strategy": "no"}
    roomy = result(run(tmp_path / "roomy", **options))
    tight = result(run(tmp_path / "tight", **options, exhaust_above=20))
    assert (roomy["plan"]["gradient_accumulation_steps"], tight["plan"]["gradient_accumulation_steps"]) == (1, 4)
    for name in ("batch_size", "learning_rate"):
        assert tight["plan"][name] == roomy["plan"][name]
    halved = [message.partition(":")[0] for message in tight["train"]["messages"] if "micro-batch" in message]
    assert halved == ["out of memory with micro-batch 64", "out of memory with micro-batch 32"]
    assert tight["losses"] == pytest.approx(roomy["losses"], rel=1e-5)
    assert kind == "cpu" or tight["sharding"] == [SPLIT_OVER_8] * 2


@ONCE
def test_out_of_memory_at_one_example_names_what_to_change(tmp_path):
    options = {**LARGE, "batch_size": 2, "blocks": 4}
    stopped(
        tmp_path,
        "out of memory with 1 examples of 16 tokens at a time on ",
        **options,
        exhaust_above=0,
    )


@ONCE
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (ValueError("RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 4.00G."), True),
        (MemoryError(), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
    ],
)
def test_memory_that_runs_out_is_told_from_other_errors(error, expected):
    assert is_out_of_memory(error) == expected


# ---- XLA


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Results of runs by their options; each runs once."""
    common = {"steps": 20, "dropout": 0.0, "save_steps": 10, "accumulation": 1, "blocks": 80}

    @functools.cache
    def of(**options) -> dict:
        return result(run(tmp_path_factory.mktemp("run"), **common | options))

    return of


@ON_XLA
def test_eight_xla_devices_and_a_cpu_give_the_same_losses_in_fp32(finished):
    on_cpu, on_xla = finished(kind="cpu"), finished(kind="xla")
    for losses in ("losses", "eval_losses"):
        assert on_xla[losses] == pytest.approx(on_cpu[losses], rel=1e-4)
    assert on_xla["late"]["compiles"] == 0


@ON_XLA
def test_after_a_resume_batches_are_split_over_all_devices(tmp_path):
    options = {"kind": "xla", "steps": 8, "save_steps": 4, "blocks": 80, "accumulation": 1}
    run(tmp_path, **options, kill_step=6)
    resumed = result(run(tmp_path, **options))
    assert resumed["train"]["resumed_from_step"] == 4
    assert resumed["sharding"] == [SPLIT_OVER_8, SPLIT_OVER_8] and resumed["late"]["compiles"] == 0


@ON_XLA
def test_gradient_checkpointing_gives_the_identical_loss(finished):
    options = {"model": "llama", "steps": 6, "save_steps": 6, "kind": "xla"}
    assert finished(**options, checkpointing=True)["losses"] == finished(**options, precision="fp32")["losses"]


@ON_XLA
def test_a_transformer_trains_as_on_a_cpu_also_in_bf16_without_a_host_sync(finished):
    options = {"model": "llama", "steps": 6, "save_steps": 6}
    on_cpu = finished(**options, kind="cpu")
    losses = []
    for precision, tolerance in (("fp32", 1e-4), ("bf16", 2e-2)):
        on_xla = finished(**options, kind="xla", precision=precision)
        assert on_xla["losses"] == pytest.approx(on_cpu["losses"], rel=tolerance)
        # Its batches have no attention mask, for which transformers would read the positions in every micro-batch.
        assert on_xla["late"] == QUIET
        losses.append(on_xla["losses"])
    assert losses[0] != losses[1]  # bf16 is another number
