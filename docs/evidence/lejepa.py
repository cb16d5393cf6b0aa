"""What was measured of the LeJEPA text embeddings."""

from statistics import fmean

from build import ratio, result, spread
from evidence import declarations

from helpers import tables
from helpers.lejepa.parameters import EmbeddingParameters

STUDY = "lejepa_study_cpu.json"
STARTS = {
    "lexical": "TF-IDF",
    "scratch": "from nothing",
    "words": "word vectors",
    "mlm": "masked-language model",
    "retrieval": "MiniLM",
}
OURS, SHOWN = "LeJEPA", ("start, whitened", "head alone", "LeJEPA")
MAIN = ("start", "head alone", "LeJEPA", "LeJEPA + contrastive", "MNRL", "VICReg")  # methods of the page
SHAPE = {
    "effective_rank": "effective rank",
    "participation_ratio": "tr(S)² / tr(S²)",
    "sigreg_excess": "SIGReg excess",
}


def _rows(stage: str, batch: int = 16) -> dict[tuple[str, str], list[dict]]:
    """(start, method) -> its rows, a seed each."""
    found: dict[tuple[str, str], list[dict]] = {}
    for start in STARTS:
        for row in result(STUDY)["rows"]:
            if (row["stage"], row["start"], row["trial"]["batch"]) == (stage, start, batch):
                found.setdefault((start, row["trial"]["method"]), []).append(row)
    return found


def _metrics(row: dict) -> dict[str, float]:
    """The first metric of each corpus."""
    return {corpus: next(iter(metrics.values())) for corpus, metrics in row["metrics"].items()}


def _named(start: str, batch: int = 16) -> str:
    """A starting point, and the batch where it is not the usual one."""
    return STARTS[start] + (f", {batch} texts" if batch != 16 else "")


def comparison() -> str:
    """The main methods' mean over seeds on every corpus, from the starts where one gained by training."""
    table = [
        {"start": STARTS[start], "method": method}
        | {corpus: f"{fmean(_metrics(row)[corpus] for row in rows):.3f}" for corpus in _metrics(rows[0])}
        for (start, method), rows in _rows("test").items()
        if start in ("lexical", "words", "retrieval") and method in MAIN
    ]
    found = result(STUDY)
    sizes, steps = found["settings"]["sizes"], found["settings"]["steps"]
    trained = ", ".join(f"{steps[start]} ({name})" for start, name in STARTS.items() if start in steps)
    return (
        f"{sizes['num_hidden_layers']} layers, {sizes['hidden_size']} numbers; {found['data']['documents']:,} documents; "
        f"{found['machine']['device']}. Steps of 16 texts: {trained}. Mean over seeds:\n\n" + tables.markdown(table)
    )


def batches() -> str:
    """On how many corpora LeJEPA is ahead and behind, from word vectors, by the texts of a step."""
    found = [each for each in result(STUDY)["comparisons"] if (each["start"], each["method"]) == ("words", OURS)]
    against = ("start", "head alone", "MNRL", "MNRL from the head", "VICReg")
    table = []
    for batch in sorted({each["batch"] for each in found}):
        rows = {each["against"]: _difference(each) for each in found if each["batch"] == batch}
        table.append(
            {"texts of a step": batch} | {name: f"{rows[name]['ahead']} / {rows[name]['behind']}" for name in against}
        )
    return tables.markdown(table)


def _batches() -> list[int]:
    """Texts of a step, the usual first."""
    others = {row["trial"]["batch"] for row in result(STUDY)["rows"] if row["stage"] == "test"} - {16}
    return [16, *sorted(others)]


def seeds() -> str:
    """The spread over seeds, and how even the embeddings are."""
    table = []
    found = [(batch, *each, rows) for batch in _batches() for each, rows in _rows("test", batch).items()]
    for batch, start, method, rows in found:
        metrics = [_metrics(row) for row in rows]
        recall = [fmean(each["recall@100"] for each in row["metrics"].values() if "recall@100" in each) for row in rows]
        table.append(
            {"start": _named(start, batch), "method": method, "seeds": len(rows)}
            | {corpus: spread([each[corpus] for each in metrics]) for corpus in metrics[0]}
            | {
                "recall@100": spread(recall),
            }
            | {
                named: spread([row["unseen"][measure] for row in rows], 0)
                for measure, named in SHAPE.items()
                if measure in rows[0]["unseen"]
            }
        )
    return tables.markdown(table)


def differences() -> str:
    """LeJEPA without a contrastive term against the others, and the closed forms against the start, with intervals."""
    found = result(STUDY)["comparisons"]
    return tables.markdown([_difference(each) for start in STARTS for each in found if _shown(each, start)])


def _shown(each: dict, start: str) -> bool:
    whitened = "start, whitened" in (each["method"], each["against"])
    shown = each["method"] in SHOWN or (start == "retrieval" and each["against"] == "start")
    return each["start"] == start and shown and (not whitened or start == "retrieval")


def _difference(each: dict) -> dict:
    corpora = {name: value for name, value in each.items() if isinstance(value, dict)}
    return (
        {"start": _named(each["start"], each["batch"]), "difference": f"{each['method']} less {each['against']}"}
        | {name: f"{d['difference']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f})" for name, d in corpora.items()}
        | {"ahead": sum(d["low"] > 0 for d in corpora.values()), "behind": sum(d["high"] < 0 for d in corpora.values())}
    )


def headline() -> str:
    """In a few words, for README.md."""
    rows = _rows("test")
    cranfield = {
        method: spread([_metrics(row)["Cranfield"] for row in found])
        for (start, method), found in rows.items()
        if start == "words"
    }
    compared = {
        (each["start"], each["method"], each["against"], each["batch"]): _difference(each)
        for each in result(STUDY)["comparisons"]
    }

    def counts(start: str, method: str, against: str, batch: int = 16) -> str:
        found = compared[start, method, against, batch]
        return f"better on {found['ahead']}, worse on {found['behind']}"

    [lexical] = rows["lexical", "start"]
    return (
        f"With word vectors from nothing, on {len(_metrics(lexical))} test corpora, LeJEPA's training without negatives is ahead of the head in closed "
        f"form ({counts('words', OURS, 'head alone')}), and of contrastive training with 8 texts a step ({counts('words', OURS, 'MNRL', 8)}), hardly "
        f"with 32 ({counts('words', OURS, 'MNRL', 32)}). A layered encoder, from nothing or after masked-language modelling, gains nothing over the head, and "
        f"MiniLM nothing by it ({counts('retrieval', OURS, 'start')}) and little by contrastive training ({counts('retrieval', 'MNRL', 'start')}). On "
        f"Cranfield (nDCG@10) the word vectors have {cranfield['start']}, with the head {cranfield['head alone']}, trained {cranfield[OURS]}; MiniLM "
        f"{_metrics(rows['retrieval', 'start'][0])['Cranfield']:.3f}, TF-IDF {_metrics(lexical)['Cranfield']:.3f}. A run says what it is worth for your "
        f"texts, and exports the best model"
    )


def trials() -> str:
    """What was tried for each method, and what it scored on the corpus that chooses."""
    table = []
    for (start, method), rows in _rows("dev").items():
        for row in rows:
            trial, shares = row["trial"], row.get("gradient_shares", [{}])
            table.append(
                {
                    "start": STARTS[start],
                    "method": method,
                    "learning rate": trial["learning_rate"] or "",
                    "head": ", ".join(map(str, trial["head"])) if trial["head"] else "",
                    "weight": trial["weight"] or "",
                    "SIGReg's share of the gradient": ", ".join(f"{each['sigreg']:.2f}" for each in shares if each),
                    "nDCG@10 of SciTLDR": f"{row['dev']:.3f}",
                }
            )
    return tables.markdown(table)


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


def parameters() -> str:
    """Of views, head and loss, from the declarations."""
    names = ("crops", "freeze_layers", "output_dim", "head_power", "sigreg_weight", "contrastive_weight")
    return declarations.table(EmbeddingParameters, names=names)
