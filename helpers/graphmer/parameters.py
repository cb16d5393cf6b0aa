"""Parameters of the GraphMER notebooks: what is asked, how the search is tuned, and which configuration the encoder has."""

import dataclasses
from typing import Any

from pydantic import model_validator

from helpers.data.data_source import ModelSource
from helpers.data.hub import MINILM
from helpers.machine.runtime import Runtime, choose_precision
from helpers.parameters import NO_NETWORK, SAMPLE, UPLOAD, Parameters, Source, parameter, source_path

from .configuration import PROFILES, Configuration, override, read_configuration

AUTO = "auto"
SMALL_GPU = 10 * 2**30  # bytes; below it the profile for 8 GB
SEARCH, ENCODER = "Search", "Encoder"
FOR_ANY_MACHINE = {"hardware.device": "auto", "hardware.tpu_cores": 0, "run.mixed_precision": AUTO}


class GraphParameters(Parameters):
    """What `graphmer_se` and its TPU twin are told."""

    data_source: Source = parameter(
        SAMPLE,
        "Folder of Python and Java sources, or 'sample': the standard library of the Python that runs this.",
    )
    output_dir: str = parameter(
        "outputs/graphmer_se",
        "Folder for checkpoints, results and the trained models.",
        identity=False,
        tpu="outputs/graphmer_se_tpu",
    )
    query: str = parameter(
        "",
        "Name of a function or class whose callers are shown; empty takes the one that is called most.",
        identity=False,
    )
    question: str = parameter(
        "read a configuration file", "A question in your own words for the search of the code.", identity=False
    )
    base_model: ModelSource = parameter(
        MINILM,
        "Sentence encoder that the search starts from: a hub id, a local folder, or 'sample', a small random one. "
        f"{NO_NETWORK}",
        group=SEARCH,
    )
    search_steps: int = parameter(0, "Optimizer steps in which the search is tuned; 0 takes 120.", group=SEARCH, low=0)
    config: str = parameter(
        AUTO,
        "Configuration of the encoder: a YAML file or the name of a profile; 'auto' takes the profile for this machine.",
        group=ENCODER,
        suggestions=(AUTO, *PROFILES),
    )
    changes: str = parameter(
        "",
        "Values that replace those of the configuration, such as `model.num_layers=6; optimizer.lr=1e-4`.",
        group=ENCODER,
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Any:
        if self.data_source not in (SAMPLE, UPLOAD) and source_path("data_source", self.data_source) is None:
            raise ValueError(
                f"data_source={self.data_source!r}: must be a folder of sources, or {SAMPLE!r} "
                "(the installed Python's standard library)"
            )
        override(read_configuration("cpu" if self.config == AUTO else self.config), changed(self.changes))
        return self

    def configuration(self, machine: Runtime) -> Configuration:
        """The encoder's configuration: the file or the machine's profile, then `changes`, then the common parameters.

        Raises ValueError: a value, or a combination, that cannot be.
        """
        found = read_configuration(profile(machine) if self.config == AUTO else self.config)
        if self.config == AUTO:  # the machine is what it is, whatever the profile was written for
            found = override(found, FOR_ANY_MACHINE)
        found = override(found, changed(self.changes))
        values = {"run.max_steps": self.max_steps, "optimizer.lr": self.learning_rate}
        values = {"run.seed": self.seed} | {key: value for key, value in values.items() if value}
        if self.precision != AUTO:
            values["run.mixed_precision"] = self.precision
        if self.batch_size:
            parts = found.run.gradient_accumulation_steps * machine.device_count
            if self.batch_size % parts:
                raise ValueError(
                    f"batch_size={self.batch_size}: must be a multiple of {parts} (gradient_accumulation_steps x devices); "
                    "give one, or 0 for the configuration's"
                )
            values["training_data.micro_batch_size"] = self.batch_size // parts
        return override(found, values)


def in_precision(machine: Runtime, configuration: Configuration) -> Runtime:
    """The machine with `run.mixed_precision`. Raises ValueError: a precision that it cannot train in."""
    wanted = configuration.run.mixed_precision
    chosen = choose_precision(machine.kind, machine.device_name, machine.compute_capability, wanted)
    return dataclasses.replace(machine, precision=chosen[0], precision_reason=chosen[1])


def profile(machine: Runtime) -> str:
    """The profile for a machine."""
    if machine.family in ("cpu", "xla"):
        return {"cpu": "cpu", "xla": "tpu_v5e_8"}[machine.family]
    if machine.memory and machine.memory < SMALL_GPU:
        return "rtx3050"
    return "a100" if machine.compute_capability and machine.compute_capability >= (8, 0) else "t4"


def changed(text: str) -> dict[str, str]:
    """`"a.b=1; c=2"` as {"a.b": "1", "c": "2"}. Raises ValueError: a part without `=`, a key twice."""
    parts = [part.partition("=") for part in text.split(";") if part.strip()]
    found = {key.strip(): value.strip() for key, _, value in parts}
    if len(found) < len(parts) or not all(key.strip() and equals for key, equals, _ in parts):
        raise ValueError(f"changes={text!r}: must be key=value, each key once, such as model.num_layers=6; run.seed=1")
    return found
