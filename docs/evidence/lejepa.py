"""What was measured of the LeJEPA text embeddings."""

from statistics import fmean

from build import ratio, result, seeds, spread

from helpers import tables

SETTINGS = ("adaptation", "transfer")
BACKBONE, HEAD = "backbone, untrained", "backbone + closed-form head, untrained"
OURS, PEER = "LeJEPA", "MultipleNegativesRankingLoss"
METRICS = {  # column: metric and digits
    "nDCG@10": ("ndcg@10", 3),
    "recall@10": ("recall@10", 3),
    "recall@100": ("recall@100", 3),
    "effective rank": ("effective_rank", 0),
    "tr(S)² / tr(S²)": ("participation_ratio", 0),
}


def _models(setting: str) -> dict[str, list[dict]]:
    """Model -> its metrics, a seed each."""
    found: dict[str, list[dict]] = {name: [] for name in (BACKBONE, HEAD, OURS, PEER)}
    for run in seeds(f"lejepa_training_{setting}_cpu"):
        for name, metrics in (run["eval"]["baselines"] | run["comparison"][str(run["seed"])]).items():
            found[name].append(metrics)
    return found


def _spread(rows: list[dict], metric: str, digits: int) -> str:
    """One value where the seed changes nothing."""
    values = [row[metric] for row in rows]
    return spread(values[:1] if len(set(values)) == 1 else values, digits)


def comparison() -> str:
    """Both settings beside what costs nothing and beside contrastive training, and the differences seed by seed."""
    rows = [
        {"setting": setting, "model": name}
        | {column: _spread(found, *metric) for column, metric in METRICS.items()}
        | {"seeds": len(found)}
        for setting in SETTINGS
        for name, found in _models(setting).items()
    ]
    run = result("lejepa_training_transfer_cpu_seed0.json")
    return (
        f"{run['train']['steps']} steps of {run['plan']['batch_size']} texts, mean ± sample standard deviation; transfer trains on "
        f"{run['data']['train_examples']:,} pairs:\n\n{tables.markdown(rows)}\n\n{_differences()}"
    )


def _differences() -> str:
    lines = []
    for setting in SETTINGS:
        models = _models(setting)
        against = []
        for name in (BACKBONE, HEAD, PEER):
            gains = [
                ours["ndcg@10"] - theirs["ndcg@10"] for ours, theirs in zip(models[OURS], models[name], strict=True)
            ]
            ahead = sum(gain > 0 for gain in gains)
            against.append(f"{fmean(gains):+.3f} against {name} (ahead in {ahead} of {len(gains)} seeds)")
        rank, stricter = (
            fmean(row[metric] for row in models[OURS]) / fmean(row[metric] for row in models[BACKBONE])
            for metric in ("effective_rank", "participation_ratio")
        )
        lines.append(
            f"- **{setting.capitalize()}**: nDCG@10 of {OURS} is {', '.join(against)}. Its effective rank is {rank:.1f} times the "
            f"backbone's, {stricter:.1f} times by the stricter measure."
        )
    return "\n".join(lines)


def headline() -> str:
    """In a few words, for README.md."""
    ndcg = {name: _spread(found, "ndcg@10", 3) for name, found in _models("adaptation").items()}
    return (
        f"nDCG@10 on Cranfield **{ndcg[OURS]}**. MiniLM as it is has {ndcg[BACKBONE]}, contrastive training {ndcg[PEER]}; the head in "
        f"closed form, with nothing trained, {ndcg[HEAD]}: the gain is the head's, and training keeps it"
    )


def step() -> str:
    """What a step costs, and SIGReg alone."""
    training = result("embedding_training_benchmark_cpu.json")["comparisons"][0]
    sigreg = result("sigreg_benchmark_cpu.json")["comparisons"][0]
    sizes = sigreg["sizes"]
    return (
        f"A step costs what contrastive training's does: {ratio(training, 3)} of the stock trainer's examples a second at the same "
        f"backbone, batch and length with nothing frozen, of which SIGReg is {training['sigreg_share_of_step']:.1%}. SIGReg alone, "
        f"forward and backward over {sizes['N']:,} texts, {sizes['K']} dimensions and {sizes['M']} slices on a CPU, is "
        f"{ratio(sigreg)} times as fast as plain autograd and takes 1/{sigreg['memory_ratio']:.0f} of its extra memory."
    )


def settings() -> str:
    """One change at a time: time and memory."""
    found = result("embedding_settings_cpu.json")
    rows = [
        {
            "change": each["setting"],
            "examples/s": ratio({"ratio": each["examples_per_second_ratio"], **each}, 2),
            "memory": f"{each['memory_ratio']:.2f}",
        }
        for each in found["settings"]
        if each["setting"] != "past_texts=0"  # there was a queue then
    ]
    machine = found["machine"]
    return (
        f"{machine['device']}, {machine['threads']} thread beside other work, median of {found['repetitions']} turns and their range:\n\n"
        + tables.markdown(rows)
    )
