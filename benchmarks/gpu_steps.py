"""Training steps of the notebooks on a GPU by the suite's own trainer: speed, memory, out of memory, resume, processes.

The model, the length, the batch and the micro-batch are those that the notebook takes on this device; weights and tokens are
random, so that nothing is downloaded, and neither changes the work.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.gpu_parts import Here, NotHere  # noqa: E402
from helpers.machine import ranks, runtime  # noqa: E402  before transformers, which it tells whether there is a TPU

# isort: split
import torch  # noqa: E402


def driver_bytes() -> int | None:
    """Bytes in use on the device by all that run there, as the driver tells (NVML); None where it does not.

    The device is named: asked for "the current one", torch would start CUDA, whose context is to be counted.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        return torch.cuda.device_memory_used(0)
    except (RuntimeError, pynvml.NVMLError):  # no GPU, a slice of a board, or a driver that does not tell
        return None


BEFORE = driver_bytes()  # without this process's share
HERE = runtime.detect(False)

from transformers import BertConfig, PreTrainedModel, Qwen2Config, Trainer, TrainerCallback  # noqa: E402

from benchmarks.timing import WARM_UP, StepTimes  # noqa: E402
from helpers.graphmer.training import use_deterministic_kernels  # noqa: E402
from helpers.machine.runtime import Runtime  # noqa: E402
from helpers.plan.counting import count  # noqa: E402
from helpers.plan.forecast import here as forecast_here  # noqa: E402
from helpers.plan.settings import DoesNotFit, Plan, Recipe, plan  # noqa: E402
from helpers.plan.workloads import Asked, Workload, room  # noqa: E402
from helpers.run import checkpoint  # noqa: E402
from helpers.train.arguments import training_arguments  # noqa: E402
from helpers.train.trainer import TrainerMixin  # noqa: E402

STEPS, LEAST_STEPS = 20, 6  # optimizer steps; the least where they take long
SHARE = 0.4  # of a part's time that goes into steps; the rest is for making the model and for counting
SMALL_BATCH = 4
TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "vocab_size": 1500,
}
TINY_QWEN = TINY | {"num_key_value_heads": 1}


# ---- the trainer


class StepTrainer(TrainerMixin, Trainer):
    """A workload's optimizer steps as the notebooks' trainers take them; nothing is evaluated.

    Args:
        save_steps: steps between two checkpoints; 0 saves none.
        **overrides: fields of `TrainingArguments`.
    """

    def __init__(
        self, workload: Workload, plan: Plan, machine: Runtime, folder: Path, *, save_steps: int = 0, **overrides
    ):
        self.workload, self.save_steps = workload, save_steps
        if workload.notebook == "graphmer_se":  # as its configuration has it
            use_deterministic_kernels()
        arguments = training_arguments(
            plan,
            machine,
            folder,
            seed=0,
            eval_strategy="no",
            save_steps=save_steps or plan.max_steps,
            remove_unused_columns=False,
            ddp_find_unused_parameters=False,
            **{"logging_steps": plan.max_steps} | overrides,
            **({} if workload.optimizer == "adamw" else {"optim": workload.optimizer}),
        )
        if hasattr(
            workload.model, "mini_batch_size"
        ):  # caches gradients in the place of accumulating them, as its own trainer does
            from helpers.lejepa.training import _embed_in_parts

            _embed_in_parts(workload.model, arguments)
        super().__init__(
            model=workload.model,
            args=arguments,
            train_dataset=range(plan.batch_size * plan.max_steps),
            data_collator=self._batch,
            plan=plan,
            runtime=plan.on(machine),
        )
        self.model_accepts_loss_kwargs = False  # every micro-batch weighs the same

    def transformer(self) -> torch.nn.Module:
        return next(module for module in self.model.modules() if isinstance(module, PreTrainedModel))

    def _batch(self, places) -> dict[str, torch.Tensor]:
        batch = self.workload.batch(len(places), self.workload.length)
        if isinstance(batch, dict):
            return batch
        return {f"{number}/{name}": tensor for number, column in enumerate(batch) for name, tensor in column.items()}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        columns: dict[str, dict] = {}
        for key, tensor in inputs.items():
            number, _, name = key.rpartition("/")
            columns.setdefault(number, {})[name] = tensor
        batch = columns.get("") or [*columns.values()]
        return model(batch) if hasattr(self.workload.model, "chunk") else self.workload.loss(model, batch)

    def _evaluate(self, *args, **kwargs) -> dict:
        return {}

    def _save_checkpoint(self, model, trial) -> None:
        if self.save_steps:
            super()._save_checkpoint(model, trial)


class Enough(TrainerCallback):
    """Ends training after so many seconds, but not before there is something to take a median of."""

    def __init__(self, seconds: float):
        self.until = time.monotonic() + seconds

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step >= LEAST_STEPS and time.monotonic() > self.until


def asked(notebook: str, here: Here) -> Asked:
    """The notebook's own defaults, or a tiny model of the same architecture."""
    if not here.small:
        return Asked()
    if notebook == "tinystories_reservoir":
        return Asked(model="48", length=16)
    if notebook == "graphmer_se":
        profile = (ROOT / "helpers/graphmer/profiles/cpu.yaml").read_text(encoding="utf-8")
        tiny = {"size: 24": f"size: {SMALL_BATCH}", "num_layers: 3": "num_layers: 1", "device: cpu": "device: auto"}
        for given, wanted in tiny.items():
            assert given in profile, given
            profile = profile.replace(given, wanted)
        file = here.folder / "tiny.yaml"
        file.write_text(profile, encoding="utf-8")
        return Asked(model=str(file))
    config = Qwen2Config(**TINY_QWEN) if notebook == "legal_cot_sft" else BertConfig(**TINY)
    config.save_pretrained(here.folder / "tiny")
    return Asked(model=str(here.folder / "tiny"), length=32)


def prepared(notebook: str, precision: str, here: Here) -> tuple[Runtime, Recipe, Workload]:
    """This machine in a precision, and the notebook's recipe and step on it. Raises NotHere for one that it has not."""
    try:
        machine = runtime.detect(False, precision)
    except ValueError as error:
        raise NotHere(str(error)) from None
    torch.manual_seed(0)
    recipe, workload = room(notebook).planned(asked(notebook, here), machine, weights=True)
    if here.small and notebook != "graphmer_se":
        recipe = replace(recipe, batch_size=SMALL_BATCH)
    return machine, recipe, workload


# ---- speed and memory


def steps(notebook: str, precision: str, here: Here) -> dict:
    """Seconds, tokens/s, MFU and memory of a notebook's training steps beside what the planner says of them."""
    return trained(*prepared(notebook, precision, here), here)


def trained(machine: Runtime, recipe: Recipe, workload: Workload, here: Here) -> dict:
    """A few optimizer steps, measured, beside the plan."""
    try:
        planned = plan(recipe, workload, machine, max_steps=LEAST_STEPS if here.small else STEPS)
    except DoesNotFit as error:
        raise NotHere(f"DoesNotFit: {error}") from None
    machine = planned.on(machine)
    forecast = forecast_here(workload, planned, machine).results()
    micro = count(workload, planned.per_device_batch_size, kind=machine.kind, precision=planned.precision)
    flops = micro.flops * planned.gradient_accumulation_steps
    found = {
        "model": workload.name,
        "precision": planned.precision,
        "batch_size": planned.batch_size,
        "micro_batch_size": planned.per_device_batch_size,
        "gradient_checkpointing": planned.gradient_checkpointing,
        "tokens": planned.batch_size * workload.tokens,
        "flops": flops,
        "forecast": {name: forecast[name] for name in ("step_seconds", "peak_memory_bytes")},
        "counted_bytes": planned.memory.count.peak,
    }
    here.keep(found)
    trainer, times = StepTrainer(workload, planned, machine, here.folder / "run"), StepTimes()
    trainer.add_callback(times)
    trainer.add_callback(Enough(SHARE * here.seconds))
    trainer.train(resume_from_checkpoint=False)
    taken = [later - earlier for earlier, later in pairwise(times.marks[WARM_UP - 1 :])]
    seconds, peak = statistics.median(taken), machine.accelerator and machine.accelerator.peak_for(planned.precision)
    return (
        found
        | {
            "steps": len(taken),
            "step_seconds": round(seconds, 5),
            "step_seconds_range": [round(min(taken), 5), round(max(taken), 5)],
            "steps_per_second": round(1 / seconds, 3),
            "tokens_per_second": round(found["tokens"] / seconds, 1),
            "mfu": peak and round(flops / seconds / peak, 4),
            "mfu_peak_flops": peak,
            "micro_batch_size_at_the_end": trainer.plan.per_device_batch_size,
            "messages": trainer.messages,
            **losses(trainer),
        }
        | memory(machine)
    )


def losses(trainer: Trainer) -> dict:
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"loss_first": logged[0], "loss_last": logged[-1]}


def memory(machine: Runtime) -> dict:
    """Bytes at most: of tensors, of what torch has taken for them, and of what this process holds of the device."""
    if machine.kind != "cuda":
        return {"process_peak_bytes": machine.engine.peak_memory()}
    now = driver_bytes()  # torch gives nothing back, so that the end is the peak
    return {
        "allocated_peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_peak_bytes": torch.cuda.max_memory_reserved(),
        "driver_bytes": None if now is None or BEFORE is None else now - BEFORE,
    }


# ---- LoRA and QLoRA


def adapters(method: str, here: Here) -> dict:
    """Memory of legal fine-tuning with adapters, by the notebook's own loader on random weights of Qwen2.5-0.5B's shape."""
    from transformers import AutoModelForCausalLM

    from helpers.legal.model import load_model, sample_tokenizer
    from helpers.legal.parameters import LegalParameters
    from helpers.legal.training import workload
    from helpers.legal.workload import QWEN_HALF_B

    if method not in get_args(LegalParameters.model_fields["method"].annotation):
        raise NotHere(f"not there: LegalParameters.method does not take {method!r}")
    if method == "qlora":
        try:
            import bitsandbytes  # noqa: F401
        except ImportError:
            raise NotHere("bitsandbytes is not installed") from None
    config = Qwen2Config(**TINY_QWEN if here.small else QWEN_HALF_B)
    base = AutoModelForCausalLM.from_config(config, dtype=torch.float16 if HERE.precision == "fp16" else torch.bfloat16)
    base.save_pretrained(here.folder / "base")
    sample_tokenizer().save_pretrained(here.folder / "base")
    del base
    asked = Asked(method=method, length=32 if here.small else 0, model=str(here.folder / "base"))
    recipe, counted = room("legal_cot_sft").planned(asked, HERE)
    model, _ = load_model(LegalParameters(base_model=asked.model, method=method), HERE)
    made = workload(model, f"Qwen2.5-0.5B, {method}", counted.length, method)
    recipe = replace(recipe, batch_size=SMALL_BATCH if here.small else recipe.batch_size)
    planned = plan(recipe, counted, HERE, max_steps=LEAST_STEPS)
    found = {
        "method": method,
        "precision": planned.precision,
        "micro_batch_size": planned.per_device_batch_size,
        "forecast": {"peak_memory_bytes": planned.memory.results()["peak"]},
        "counted_bytes": planned.memory.count.peak,
    }
    trainer, times = StepTrainer(made, planned, HERE, here.folder / "run"), StepTimes()
    trainer.add_callback(times)
    trainer.train(resume_from_checkpoint=False)
    return found | {"step_seconds": round(times.median(), 5), **losses(trainer), **memory(HERE)}


# ---- out of memory


def ladder(here: Here) -> dict:
    """A run whose micro-batch does not fit ends with a smaller one, the same batch, and finite weights.

    torch is given less of the device than the batch needs: the middle between the needs of a quarter of it and of all of it.
    """
    batch, length = 64, 512
    machine = HERE
    recipe, workload = room("hardware_tuning").planned(
        Asked(length=32 if here.small else length), machine, weights=True
    )
    recipe = replace(recipe, batch_size=batch, micro_batch_size=batch, gradient_checkpointing=False)
    how = {"kind": "cuda", "precision": machine.precision, "accumulating": True}
    quarter, whole = (count(workload, examples, **how).peak for examples in (batch // 4, batch))
    allowed = (quarter + whole) // 2
    if allowed > 0.9 * machine.memory:
        raise NotHere(f"the smaller micro-batch needs {allowed / 2**30:.1f} GiB")
    planned = plan(recipe, workload, machine, max_steps=3)
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties(0).total_memory)
    trainer = StepTrainer(workload, planned, machine, here.folder / "run", save_steps=3)
    trainer.train(resume_from_checkpoint=False)
    end = trainer.plan
    return {
        "allowed_bytes": allowed,
        "asked": {"micro_batch_size": batch, "gradient_accumulation_steps": 1},
        "ended_with": {
            "micro_batch_size": end.per_device_batch_size,
            "gradient_accumulation_steps": end.gradient_accumulation_steps,
        },
        "same_batch": end.batch_size == batch,
        "halved": end.per_device_batch_size < batch,
        "steps": trainer.state.global_step,
        "messages": trainer.messages,
        "allocated_peak_bytes": torch.cuda.max_memory_allocated(),
        **losses(trainer),
    }


# ---- kill and resume

RESUMED = {"steps": 8, "save_steps": 3, "kill_step": 5}
WEIGHTS = ("model.safetensors", "adapter_model.safetensors")


def resume(notebook: str, here: Here) -> dict:
    """Whether a run that is killed and goes on ends with the bytes of one that is not.

    If not, whether two undisturbed runs do, and whether it does with deterministic kernels.
    """
    found = killed_and_resumed(notebook, here, "as they are")
    here.keep(found)
    if found["equal"]:
        return found
    run(notebook, here, "again")
    found["undisturbed_runs_agree"] = fingerprint(here.folder / "again") == found["sha256"]["undisturbed"]
    here.keep(found)
    return found | {"deterministic": killed_and_resumed(notebook, here, "deterministic")}


def killed_and_resumed(notebook: str, here: Here, kernels: str) -> dict[str, Any]:
    """An undisturbed run, and one that is killed and goes on, each in processes of its own."""
    folders = {name: here.folder / f"{name}, {kernels}" for name in ("undisturbed", "killed")}
    codes = [run(notebook, here, folders["undisturbed"].name), run(notebook, here, folders["killed"].name, kill=True)]
    left = checkpoint.newest_whole(folders["killed"])[0]
    codes.append(run(notebook, here, folders["killed"].name))
    if codes != [0, -signal.SIGKILL, 0]:
        raise RuntimeError(f"exit statuses {codes}: 0, {-signal.SIGKILL} and 0 were expected")
    hashes = {name: fingerprint(folder) for name, folder in folders.items()}
    equal = hashes["killed"] == hashes["undisturbed"]
    return {**RESUMED, "resumed_from": left and left.name, "equal": equal, "sha256": hashes}


def run(notebook: str, here: Here, name: str, kill: bool = False) -> int:
    """Exit status of one run, which goes on from what is in its folder."""
    told = {"notebook": notebook, "kind": here.kind, "small": here.small, "kill_step": kill * RESUMED["kill_step"]}
    command = [sys.executable, __file__, str(here.folder / name), json.dumps(told)]
    return subprocess.run(command, stdout=sys.stderr, check=False).returncode


def fingerprint(folder: Path) -> dict[str, str]:
    """Hashes of the last checkpoint's weights, optimizer and schedule."""
    last = checkpoint.folder(folder, RESUMED["steps"])
    names = (*WEIGHTS, "optimizer.pt", "scheduler.pt", "scaler.pt")
    return {name: hashlib.sha256((last / name).read_bytes()).hexdigest() for name in names if (last / name).exists()}


def resumable(folder: str, notebook: str, kind: str, small: bool, kill_step: int) -> None:
    """What the process of a run does."""
    if folder.endswith("deterministic"):
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)

    class Kill(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if state.global_step + 1 == kill_step:
                os.kill(os.getpid(), signal.SIGKILL)

    scratch = Path(folder).with_name(f"{Path(folder).name}-model")
    scratch.mkdir(exist_ok=True)
    here = Here(kind=kind, small=small, folder=scratch, seconds=0, keep=print)
    machine, recipe, workload = prepared(notebook, "auto", here)
    planned = plan(recipe, workload, machine, max_steps=RESUMED["steps"])
    options = {"save_steps": RESUMED["save_steps"], "logging_steps": 1}
    trainer = StepTrainer(workload, planned, machine, Path(folder), **options)
    trainer.add_callback(Kill())
    trainer.train()


# ---- two processes


def together(here: Here) -> dict:
    """Steps of the classifier in one process and in two, and whether both end with the same weights."""
    gpus, visible = runtime.gpus()  # before one was chosen
    if here.kind == "cuda" and gpus < 2:
        raise NotHere(f"needs two GPUs, and torch sees {gpus}")
    found: dict[str, Any] = {}
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    for processes in (1, 2):
        output = here.folder / f"{processes}.json"
        target = ["benchmarks.gpu_steps:in_processes", "-p", "output", str(output), "-p", "kind", here.kind]
        target += ["-p", "small", "yes"] if here.small else []
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [*torchrun, "-m", "helpers.batch.processes", *target]
        subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=True)
        found[str(processes)] = json.loads(output.read_text())
        here.keep(found)
    one, two = (found[processes]["examples_per_second"] for processes in "12")
    return found | {"speedup": round(two / one, 3)}


def in_processes(output: str, kind: str, small: str = "") -> None:
    """What each process of `together` does; as many examples a process, however many there are."""
    folder = Path(output).with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    here = Here(kind=kind, small=bool(small), folder=folder, seconds=60, keep=print)
    with ranks.main_process_first():  # a tiny model is a file
        machine, recipe, workload = prepared("hardware_tuning", "auto", here)
    recipe = replace(recipe, batch_size=8 * machine.device_count)
    planned = plan(recipe, workload, machine, max_steps=STEPS)
    trainer, times = StepTrainer(workload, planned, machine, folder / "run"), StepTimes()
    trainer.add_callback(times)
    trainer.train(resume_from_checkpoint=False)
    digest = hashlib.sha256()
    for weight in trainer.trained_module().parameters():
        digest.update(weight.detach().cpu().numpy().tobytes())
    weights = ranks.gather(digest.hexdigest())
    if ranks.is_main():
        found = {
            "batch_size": planned.batch_size,
            "step_seconds": round(times.median(), 5),
            "examples_per_second": round(planned.batch_size / times.median(), 2),
            "same_weights": len(set(weights)) == 1,
            **losses(trainer),
        }
        Path(output).write_text(json.dumps(found))


# ---- whole notebooks

SAMPLE = {"data_source": "sample", "base_model": "sample", "max_steps": 8}
TOLD: Mapping[str, dict] = {
    "tinystories_reservoir": {"data_source": "sample", "max_steps": 8, "num_stories": 300},
    "legal_cot_sft": SAMPLE | {"num_records": 80, "test_records": 2, "max_new_tokens": 8},
    "lejepa_training": SAMPLE,
    "graphmer_se": {"max_steps": 8, "config": "cpu", "changes": "hardware.device=auto; run.mixed_precision=auto"},
    "hardware_tuning": {"data_source": "sample", "base_model": "sample"},
}


def notebook(name: str, here: Here) -> dict:
    """All cells of a notebook on its sample, headless: whether it ends, and what it writes."""
    output = here.folder / "out"
    values = [text for key, value in TOLD[name].items() for text in ("-p", key, str(value))]
    command = [sys.executable, "-m", "helpers.batch.processes", str(ROOT / f"notebooks/{name}.ipynb")]
    done = subprocess.run(
        [*command, "-p", "output_dir", str(output), *values], cwd=ROOT, stdout=sys.stderr, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"the notebook ended with status {done.returncode}; the end of what it printed is in `output`"
        )
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    return {name: results.get(name) for name in ("runtime", "train")}


if __name__ == "__main__":
    resumable(sys.argv[1], **json.loads(sys.argv[2]))
