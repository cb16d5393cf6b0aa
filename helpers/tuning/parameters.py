"""Parameters of the hardware tuning notebooks, and the learning rate behind its zero."""

from helpers.parameters import NO_NETWORK, Parameters, Source, parameter


class TuningParameters(Parameters):
    """What `hardware_tuning` and its TPU twin are told. `batch_size` is the tuned one; 0 finds it by trying."""

    data_source: Source = parameter(
        "dair-ai/emotion",
        f"Hub data set; your own `.csv`, `.jsonl` or `.parquet` with text and label; a folder of splits; or 'sample'. {NO_NETWORK}",
    )
    base_model: Source = parameter(
        "google-bert/bert-base-uncased",
        "Encoder to fine-tune: hub id, local path, or 'sample' for a tiny random one.",
        suggestions=("google-bert/bert-base-uncased", "sentence-transformers/all-MiniLM-L6-v2", "sample"),
    )
    output_dir: str = parameter(
        "outputs/hardware_tuning",
        "Folder for checkpoints, results and the trained model.",
        identity=False,
        tpu="outputs/hardware_tuning_tpu",
    )
    max_length: int = parameter(192, "Tokens of a text that the model reads; longer texts are cut.", low=8, high=8192)
    batch_size: int = parameter(
        0,
        "The only batch size to try; below 8 the tuning begins with it. 0 begins with 8 and doubles it while that is faster.",
        low=0,
    )
    text_column: str = parameter("text", "Name of the column with the texts.", group="Data")
    label_column: str = parameter("label", "Name of the column with the labels.", group="Data")
    num_rows: int = parameter(0, "Rows of each split at most; 0 takes all rows.", group="Data", low=0)
    tuning_minutes: float = parameter(
        30.0,
        "Minutes until the verdict, from the first cell on: timing, and training runs that compare quality.",
        group="Tuning",
        low=0.1,
        identity=False,
    )
    try_compile: bool = parameter(
        False, "Try torch.compile, which takes minutes and may crash on Colab.", group="Tuning"
    )


def learning_rate(weights: int) -> float:
    """Of the stock batch, for a model with so many weights; one digit.

    The rate that a model learns at falls with its weights: 2e-4 for the 22.7 million of MiniLM; 4e-5 for BERT-base and 1e-5 for BERT-large,
    where Devlin et al. (2019) and Liu et al. (2019) chose among 1e-5 to 5e-5.
    """
    return float(f"{min(1e-3, 4_500 / weights):.0e}")
