"""What was measured of the reservoir language model."""

from build import ratio, result, seeds, spread

from helpers import tables

MODELS = {
    "reservoir": "reservoir",
    "transformer": "Llama, same batches and trainer",
}


def _runs() -> list[dict]:
    return seeds("tinystories_reservoir_cpu")


def comparison() -> str:
    """Reservoir, transformer and counting on the same text."""
    runs = _runs()
    rows = []
    for model, name in MODELS.items():
        found = [run["comparison"][str(run["seed"])][model] for run in runs]
        rows.append(
            {
                "model": name,
                "trained": found[0]["trainable"],
                "frozen": runs[0]["model"]["frozen"] if model == "reservoir" else 0,
                "bits per byte": spread([each["bits_per_byte"] for each in found]),
                "perplexity": spread([each["perplexity"] for each in found], 2),
            }
        )
    baselines = runs[0]["eval"]["baselines"]
    for name, found in sorted(baselines.items(), key=lambda pair: pair[1]["bits_per_byte"]):
        rows.append(
            {
                "model": name,
                "trained": "closed form" if "ridge" in name else "counts",
                "bits per byte": f"{found['bits_per_byte']:.3f}",
                "perplexity": f"{found['perplexity']:.1f}",
            }
        )
    steps, data = runs[0]["train"]["steps"], runs[0]["data"]
    return (
        f"{data['train_tokens']:,} tokens of real stories to train on, vocabulary of {data['vocab_size']:,}; {steps:,} steps; "
        f"{len(runs)} seeds (weights, reservoirs and data order), mean ± sample standard deviation:\n\n"
        + tables.markdown(rows)
    )


def headline() -> str:
    """The same in sentences, for README.md."""
    runs = _runs()
    first = runs[0]
    found = {model: [run["comparison"][str(run["seed"])][model] for run in runs] for model in MODELS}
    ours, theirs = (
        f"**{spread([each['bits_per_byte'] for each in rows])} bits per byte** "
        f"(perplexity {spread([each['perplexity'] for each in rows], 2)})"
        for rows in found.values()
    )
    trigram, bigram, unigram = (
        f"{first['eval']['baselines'][name]['bits_per_byte']:.3f}"
        for name in ("Kneser-Ney trigram", "bigram", "unigram")
    )
    return (
        f"On {first['data']['train_tokens']:,} tokens of real TinyStories text, after {first['train']['steps']:,} steps, the "
        f"reservoir with {first['model']['trainable']:,} trained and {first['model']['frozen']:,} frozen weights reaches {ours} "
        f"on held-out stories. A Llama of {found['transformer'][0]['trainable']:,} weights on the same batches through the same "
        f"trainer reaches {theirs}, so the transformer is still a little better; counting three tokens (Kneser-Ney) gives "
        f"{trigram}, pairs {bigram}, single tokens {unigram} ({len(runs)} seeds; [table](docs/reservoir.md#evidence))."
    )


def speed() -> str:
    """Against the strongest form of each peer, in one run."""
    found = result("reservoir_benchmark_cpu.json")
    rows = []
    for each in found["comparisons"]:
        sizes = ", ".join(f"{name} = {value:,}" for name, value in each["sizes"].items())
        rows.append(
            {
                "what": f"{each['comparison']} ({sizes})",
                "against": each["peer"],
                "tokens/s": each["ours_tokens_per_second"],
                "ratio (range)": ratio(each),
            }
        )
    machine = found["machine"]
    return (
        f"{machine['device']}, {machine['threads']} threads, medians of turns taken in one process:\n\n"
        + tables.markdown(rows)
    )
