"""What was measured of the LeJEPA text embeddings."""

from build import ratio, result
from evidence import declarations

from helpers.lejepa.parameters import EmbeddingParameters


def headline() -> str:
    """In a few words, for README.md."""
    return (
        "From word vectors LeJEPA's training is worth something where batches are small; from MiniLM it is not told apart from the start "
        "or behind it. A run says what it is worth for your texts, and exports the best model"
    )


def step() -> str:
    """What SIGReg costs alone."""
    sigreg = result("sigreg_benchmark_cpu.json")["comparisons"][0]
    sizes = sigreg["sizes"]
    return (
        f"SIGReg, forward and backward over {sizes['N']:,} texts, {sizes['K']} dimensions and {sizes['M']} slices on a CPU, is "
        f"{ratio(sigreg)} times as fast as plain autograd and takes 1/{sigreg['memory_ratio']:.0f} of its extra memory."
    )


def parameters() -> str:
    """Of views, head and loss, from the declarations."""
    names = ("crops", "freeze_layers", "output_dim", "head_power", "sigreg_weight", "contrastive_weight")
    return declarations.table(EmbeddingParameters, names=names)
