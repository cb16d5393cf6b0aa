"""Parameters of the GraphMER notebooks: what is asked, how the search is tuned, and which configuration the encoder has."""

from pydantic import model_validator

from helpers.data.hub import MINILM
from helpers.machine.runtime import Runtime
from helpers.parameters import NO_NETWORK, SAMPLE, Parameters, Source, parameter

from .configuration import PROFILES, Configuration, override, read_configuration

AUTO = "auto"
SEARCH, ENCODER = "Search", "Encoder"


class GraphParameters(Parameters):
    """What `graphmer_se` and its TPU twin are told."""

    data_source: Source = parameter(
        SAMPLE,
        "Folder of Python sources and notebooks, or 'sample': the standard library of the Python that runs this.",
    )
    output_dir: str = parameter(
        "outputs/graphmer_se",
        "Folder for checkpoints, results and the trained models.",
        identity=False,
        tpu="outputs/graphmer_se_tpu",
    )
    query: str = parameter(
        "",
        "Name whose callers are shown; empty takes the one that is called most.",
        identity=False,
    )
    question: str = parameter(
        "read a configuration file", "A question in your own words for the search of the code.", identity=False
    )
    base_model: Source = parameter(
        MINILM,
        "Sentence encoder that the search starts from: a hub id, a local folder, or 'sample', a small random one. "
        f"{NO_NETWORK}",
        group=SEARCH,
    )
    search_steps: int = parameter(0, "Optimizer steps in which the search is tuned; 0 = 120.", group=SEARCH, low=0)
    config: str = parameter(
        AUTO,
        "Configuration of the encoder: a YAML file or a profile; 'auto' takes `rtx3050`, and on a CPU `cpu`.",
        group=ENCODER,
        suggestions=(AUTO, *PROFILES),
    )
    changes: str = parameter(
        "",
        "Values that replace those of the configuration, such as `model.num_layers=6; optimizer.lr=1e-4`.",
        group=ENCODER,
    )

    @model_validator(mode="after")
    def _fits_together(self):
        self.on_devices("cpu", 1)
        return self

    def configuration(self, machine: Runtime) -> Configuration:
        """The encoder's configuration: the file, the profile or what "auto" takes for a machine, then `changes`, then the common
        parameters.

        Raises ValueError: a value, or a combination, that cannot be; a device that the machine has not.
        """
        configuration = self.on_devices(machine.kind, machine.device_count)
        values: dict[str, object] = {"run.seed": self.seed}
        if self.max_steps:
            values["run.max_steps"] = self.max_steps
        if self.learning_rate:
            values["optimizer.lr"] = self.learning_rate
        if self.precision != AUTO:
            values["run.mixed_precision"] = self.precision
        if self.batch_size:
            values["training_data.micro_batch_size"] = self.batch_size / machine.device_count
            values["run.gradient_accumulation_steps"] = 0
        configuration = override(configuration, values)
        configuration.require(machine)
        return configuration

    def on_devices(self, family: str, count: int) -> Configuration:
        """The file, the profile or what "auto" takes for so many devices of a family, with `changes`."""
        changes = parse_changes(self.changes)
        if self.config != AUTO:
            return override(read_configuration(self.config), changes)
        if family == "cpu":
            return override(read_configuration("cpu"), changes)
        configuration = read_configuration("rtx3050")
        values = {
            "training_data.micro_batch_size": max(1, configuration.batch_size(1) // count),
            "run.gradient_accumulation_steps": 0,
            "checkpointing.activation_checkpointing": AUTO,
        }
        return override(configuration, values | changes)


def parse_changes(text: str) -> dict[str, str]:
    """`"a.b=1; c=2"` as {"a.b": "1", "c": "2"}. Raises ValueError: a part without `=`."""
    try:
        parts = [part.split("=", 1) for part in text.split(";") if part.strip()]
        return {key.strip(): value for key, value in parts}
    except ValueError:
        raise ValueError(f"changes={text!r}: must be key=value, such as model.num_layers=6; run.seed=1") from None
