"""Parameters of the GraphMER notebooks: which configuration, what of it is changed, and what is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from helpers.graphmer.configuration import Configuration, override, read_configuration
from helpers.parameters import SAMPLE, Parameters, in_range, source_path

if TYPE_CHECKING:
    from helpers.runtime import Runtime

AUTO = "auto"
SMALL_GPU = 10 * 2**30  # bytes; below it the profile for 8 GB


@dataclass(frozen=True, kw_only=True)
class GraphParameters(Parameters):
    """What `graphmer_se` and its TPU twin are told."""

    not_identity: ClassVar[frozenset[str]] = frozenset(
        {"compare_baselines", "ablations", "further_seeds", "query", "evaluate_triples"}
    )

    config: str  # YAML file, profile, or "auto": the profile of this machine
    changes: str  # keys of the configuration with other values, "model.num_layers=6; optimizer.lr=1e-4"
    evaluate_triples: int  # held-out triples that the test asks for; 0 = the configuration's
    compare_baselines: bool  # frequency, strings, TransE, DistMult and RotatE beside it
    ablations: bool  # the same encoder with leaves masked, without H-GAT, without decay, for as many steps
    further_seeds: int  # the model again with so many more seeds, for the spread
    patience: int  # evaluations without improvement before the run stops; 0 = never
    query: str  # entity whose neighbourhood is drawn and whose links are predicted; "" = one of the test's

    def __post_init__(self):
        super().__post_init__()
        if self.data_source != SAMPLE and source_path("data_source", self.data_source) is None:
            raise ValueError(
                f"data_source={self.data_source!r}: must be a folder of sources, one with triples.jsonl and "
                f"entities.jsonl, or {SAMPLE!r} (the installed Python's standard library)"
            )
        for name, high in (("evaluate_triples", 10**9), ("further_seeds", 100), ("patience", 10_000)):
            in_range(name, getattr(self, name), 0, high)
        override(read_configuration("cpu" if self.config == AUTO else self.config), changed(self.changes))

    def configuration(self, machine: Runtime) -> Configuration:
        """The configuration of the run: the file or the machine's profile, then `changes`, then the common parameters.

        Raises ValueError: a value, or a combination, that cannot be.
        """
        chosen = profile(machine) if self.config == AUTO else self.config
        found = override(read_configuration(chosen), changed(self.changes))
        values = {
            "run.seed": self.seed,
            "run.max_steps": self.max_steps,
            "optimizer.lr": self.learning_rate,
            "evaluation.max_triples": self.evaluate_triples,
        }
        values = {key: value for key, value in values.items() if value or key == "run.seed"}
        if self.config == AUTO:  # the machine is what it is, whatever the profile was written for
            values |= {"hardware.device": "auto", "hardware.tpu_cores": 0}
        if self.precision != AUTO:
            values["run.mixed_precision"] = self.precision
        if self.batch_size:
            parts = found.run.gradient_accumulation_steps * machine.device_count
            if self.batch_size % parts:
                raise ValueError(
                    f"batch_size={self.batch_size}: must be a multiple of {parts} (gradient_accumulation_steps x "
                    "devices); give one, or 0 for the configuration's"
                )
            values["training_data.micro_batch_size"] = self.batch_size // parts
        return override(found, values)


def profile(machine: Runtime) -> str:
    """The profile for a machine."""
    if machine.kind == "cpu":
        return "cpu"
    if machine.kind == "xla":
        return "tpu_v5e_8"
    if machine.memory and machine.memory < SMALL_GPU:
        return "rtx3050"
    return "a100" if machine.compute_capability and machine.compute_capability >= (8, 0) else "t4"


def changed(text: str) -> dict[str, str]:
    """`"a.b=1; c=2"` as {"a.b": "1", "c": "2"}. Raises ValueError: a part without `=`, a key twice."""
    found: dict[str, str] = {}
    for part in filter(str.strip, text.split(";")):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"changes={text!r}: {part.strip()!r} is not key=value, such as model.num_layers=6")
        if key.strip() in found:
            raise ValueError(f"changes={text!r}: {key.strip()} is there twice; keep one")
        found[key.strip()] = value.strip()
    return found
