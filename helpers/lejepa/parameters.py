"""Parameters of the LeJEPA notebooks, and the recipe behind their zeros."""

from helpers.data.hub import EMBEDDING_GEMMA, MINILM, MPNET
from helpers.parameters import MACHINE, NO_NETWORK, SAMPLE, Parameters, Source, parameter
from helpers.plan.settings import Recipe

DEFAULT_DATA = "mteb/medical_qa"  # 2,048 questions and their answers; CC0 by MTEB's metadata
AUTO = "auto"
LEAST_BATCH = 2  # texts: LeJEPA compares texts with each other
BATCH, EPOCHS = 64, 10
CPU_STEPS, CPU_TOKENS = 120, 400_000  # at most on a CPU; MiniLM trains on so many tokens in some 5 minutes
STEPS = 600  # at most elsewhere: 10 minutes of mpnet on a T4


class EmbeddingParameters(Parameters):
    """Parameters of `lejepa_training` and of its TPU twin."""

    least_batch = LEAST_BATCH
    data_source: Source = parameter(
        DEFAULT_DATA,
        f"Your folder of documents, a .csv or .jsonl of past questions with their answers, a hub set, or 'sample'. {NO_NETWORK}",
    )
    base_model: Source = parameter(
        AUTO,
        "Model to start from: 'auto', a hub id, a local path, or 'sample' for a tiny random model.",
        suggestions=(AUTO, MINILM, MPNET, EMBEDDING_GEMMA, SAMPLE),
    )
    output_dir: str = parameter(
        "outputs/lejepa_training",
        "Folder for checkpoints, results, the trained model and the search.",
        identity=False,
        tpu="outputs/lejepa_training_tpu",
    )
    output_dim: int = parameter(512, "Dimensions of an embedding; at most as many as the model has.", low=2, high=4096)

    num_samples: int = parameter(
        20000,
        "Training pairs to use at most; 0 uses all. Every document is searchable, whatever the number is.",
        group="Texts",
        low=0,
    )
    max_seq_length: int = parameter(
        256, "Tokens of a passage that the model reads; the rest is cut off.", group="Texts", low=8, high=8192
    )
    train_length: int = parameter(
        128, "Tokens of a text that the model reads in training; the rest is cut off.", group="Texts", low=8, high=8192
    )

    sigreg_weight: float = parameter(
        0.02, "Weight w of SIGReg, the paper's lambda: (1 - w) invariance + w SIGReg.", group="Loss", low=0.0, high=1.0
    )
    contrastive_weight: float = parameter(1.0, "Weight of the contrastive term.", group="Loss", low=0.0)
    save_steps: int = parameter(50, "Optimizer steps between two checkpoints.", group=MACHINE, low=1, identity=False)


def choose_base_model(base_model: str, kind: str) -> str:
    """The model that "auto" stands for on a device of this kind: MiniLM on a CPU, mpnet on a GPU or TPU."""
    if base_model != AUTO:
        return base_model
    return MINILM if kind == "cpu" else MPNET


def recipe(examples: int, answers: int, row_tokens: float, sequence_length: int, kind: str) -> Recipe:
    """The recipe: ten passes over the training pairs, but no more than take some minutes on a device of this kind.

    answers: different ones, of which a batch has each once. row_tokens: of both views, on average. sequence_length: of both, at most.
    """
    batch_size = max(LEAST_BATCH, min(BATCH, answers))
    steps = STEPS
    if kind == "cpu":
        steps = min(CPU_STEPS, int(CPU_TOKENS / (batch_size * row_tokens)))
    return Recipe(
        batch_size=batch_size,
        learning_rate=1e-4,
        max_steps=max(1, min(steps, EPOCHS * examples // batch_size)),
        sequence_length=sequence_length,
        warmup_fraction=0.1,
        weight_decay=0.01,
        smallest=LEAST_BATCH,
    )
