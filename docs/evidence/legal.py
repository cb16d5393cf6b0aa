"""What was measured of legal chain-of-thought fine-tuning."""

from statistics import fmean

import numpy as np
from build import RESULTS, result
from evidence import declarations

from helpers import tables
from helpers.legal import correctness
from helpers.legal.parameters import LegalParameters

PRETRAINED = "legal_cot_sft_smollm2_cpu.json"
SHOWN = ("findings", "facts", "parties", "support", "agreement", "steps", "format", "stops")


def _runs() -> list[dict]:
    return [result(path.name) for path in sorted(RESULTS.glob("legal_cot_sft_sample_cpu_seed?.json"))]


def headline() -> str:
    """In a few words, for README.md: right verdicts, seed by seed."""

    def verdicts(part: str) -> tuple[str, str, int]:
        """Ours and the nearest record's by seed, and in how many runs ours is ahead with the intervals apart."""
        pairs = [
            (
                run["eval"]["after"][part]["verdict"],
                run["eval"]["baselines"][part]["nearest training record"]["verdict"],
            )
            for run in _runs()
        ]
        ours, near = (" / ".join(f"{100 * each['rate']:.0f}" for each in system) for system in zip(*pairs, strict=True))
        return ours, near, sum(own["low"] > theirs["high"] for own, theirs in pairs)

    def small(part: str) -> str:
        run = result(PRETRAINED)["eval"]
        ours, near = run["after"][part], run["baselines"][part]["nearest training record"]
        return f"{100 * ours['verdict']['rate']:.0f} % against {100 * near['verdict']['rate']:.0f} %"

    (ours, near, _), (ours_away, near_away, ahead) = verdicts("test"), verdicts("areas")
    return (
        f"On invented law with new names and facts **{ours} % right verdicts**, where copying the nearest training record gives {near} %. "
        f"In areas of law that are not in training it is ahead of that in {ahead} of {len(_runs())} runs: {ours_away} % against {near_away} %. "
        f"From a small pretrained model (SmolLM2-135M-Instruct, one seed) {small('test')}, in new areas {small('areas')}"
    )


def recipe() -> str:
    """What was trained, on what, and for how long."""
    runs = _runs()
    first, of = runs[0], ", ".join(str(run["seed"]) for run in runs)
    minutes = [(run["train"]["seconds"] - run["train"]["evaluate_and_save_seconds"]) / 60 for run in runs]
    return (
        f"All {first['model']['trainable']:,} weights of the sample's random model on {first['data']['train_examples']:,} of "
        f"{first['data']['report']['records']:,} of the sample's records, {first['train']['steps']:,} steps, seeds {of}; "
        f"{first['eval']['after']['test']['stops']['of']} questions of each test. Training took {min(minutes):.1f} to "
        f"{max(minutes):.1f} minutes on a shared CPU."
    )


def _table(part: str) -> str:
    """Every measure by system and seed, and whether the trained model is ahead of what costs nothing."""
    runs = _runs()
    systems = {
        name: [run["eval"]["baselines"][part][name] for run in runs] for name in ("constant", "nearest training record")
    }
    systems |= {
        "base model": [run["eval"]["before"][part] for run in runs],
        "**trained**": [run["eval"]["after"][part] for run in runs],
        "gold": [run["eval"]["baselines"][part]["gold"] for run in runs],
    }
    measures = [name for name, found in systems["gold"][0].items() if isinstance(found, dict)]
    rows = [
        {"answers": name}
        | {measure: ", ".join(f"{100 * each[measure]['rate']:.0f}" for each in found) for measure in measures}
        for name, found in systems.items()
    ]
    trained, near = systems["**trained**"], systems["nearest training record"]
    verdicts = "; ".join(
        f"seed {run['seed']} {_interval(ours['verdict'])} against {_interval(theirs['verdict'])}"
        for run, ours, theirs in zip(runs, trained, near, strict=True)
    )
    ahead = sum(a["verdict"]["low"] > b["verdict"]["high"] for a, b in zip(trained, near, strict=True))
    behind = sum(a["verdict"]["count"] < b["verdict"]["count"] for a, b in zip(trained, near, strict=True))
    counted = [each for run in runs for each in run["eval"]["overlap"] if each["questions"] == part]
    return (
        f"{tables.markdown(rows)}\n\nPercent, seed by seed. Right verdicts of the trained model and of the nearest training "
        f"record, with 95 % intervals: {verdicts}. The intervals are apart, with the trained model ahead, in {ahead} of "
        f"{len(runs)} runs; the nearest training record has more right verdicts in {behind} of {len(runs)}. "
        f"Of {sum(each['steps'] for each in counted):,} reasoning steps of these questions "
        f"{sum(each['verbatim'] for each in counted):,} are in training word for word and "
        f"{sum(each['near_duplicates'] for each in counted):,} are near-duplicates of one that is."
    )


def _interval(found: dict) -> str:
    return f"{100 * found['rate']:.0f} ({100 * found['low']:.0f} to {100 * found['high']:.0f})"


def held_out_facts() -> str:
    """Questions whose facts, names and sets of elements are not in training."""
    return _table("test")


def held_out_areas() -> str:
    """Questions of areas of law that are not in training."""
    return _table("areas")


def real_records() -> str:
    """An early copy of the data set, with the sample's model."""
    run = result("legal_cot_sft_uk_qa_cpu.json")
    data, report = run["data"], run["data"]["report"]
    records, kept, away = report["records"], report["kept"], len(data["not_used"])
    used = sum(data[f"{name}_examples"] for name in ("train", "validation", "test"))
    reasons = "; ".join(f"{count} {defect}" for defect, count in report["set_aside"].items() if count)
    mended = ", ".join(f"{count} {name}" for name, count in report["warned"].items() if count)
    before, after = (run["eval"][when]["test"]["completion"] for when in ("before", "after"))
    return (
        f"Of {records:,} rows **{used:,} are used ({used / records:.0%})**. Set aside for a defect: {records - kept}{f' ({reasons})' if reasons else ''}; "
        f"because they are longer than {data['max_length']:,} tokens of the sample's small vocabulary: {away}. Of the rows kept: {mended}. "
        f"Loss on the completions of {after['rows']} held-out records is {before['loss']:.2f} before and {after['loss']:.2f} after "
        f"{run['train']['steps']} steps. Answers end after {run['parameters']['max_new_tokens']} tokens.\n\n{_real_table(run)}"
    )


def _real_table(run: dict) -> str:
    references = run["eval"]["baselines"]["test"]
    rows = correctness.table(references, run["eval"]["before"]["test"], run["eval"]["after"]["test"])
    return f"{tables.markdown(rows)}\n\n{correctness.note(references)}."


def pretrained() -> str:
    """A real pretrained model on the sample: its answers before, with solved examples, and after; labelled questions."""
    run = result(PRETRAINED)
    train, sizes = run["train"], run["model"]
    tests = {"test": "new facts", "areas": "new areas"}
    rows = []
    for part, said in tests.items():
        baselines = run["eval"]["baselines"][part]
        systems = {name: found for name, found in baselines.items() if name != "gold"}
        systems |= {
            "base model": run["eval"]["before"][part],
            "**trained**": run["eval"]["after"][part],
            "gold": baselines["gold"],
        }
        rows += [
            {"questions": said, "answers": name, "verdict": _interval(found["verdict"])}
            | {measure: f"{100 * found[measure]['rate']:.0f}" for measure in SHOWN}
            for name, found in systems.items()
        ]
    return (
        f"SmolLM2-135M-Instruct, its weights rounded from 4 bits; LoRA, {sizes['trainable']:,} weights, {train['steps']} steps on "
        f"{run['data']['train_examples']} of the sample's records in bf16 on a CPU; {run['eval']['after']['test']['stops']['of']} questions "
        f"of each test, one seed.\n\n{tables.markdown(rows)}\n\n{_labelled(run)}"
    )


def _labelled(run: dict) -> str:
    """Labelled questions before and after, over all tasks."""
    before, after = (run["eval"][when]["test"]["questions"]["tasks"] for when in ("before", "after"))
    systems = {
        "uniform chance": [each["uniform_chance"] for each in after.values()],
        "each task's most frequent answer": [each["best_constant"] for each in after.values()],
        "base model": [before[name]["acc"] for name in after],
        "**trained**": [each["acc"] for each in after.values()],
    }
    rows = [{"answers": name, "accuracy": f"{100 * fmean(values):.1f}"} for name, values in systems.items()]
    gained_T = np.subtract(systems["**trained**"], systems["base model"])
    drawn_RT = np.random.default_rng(0).integers(0, len(gained_T), (5000, len(gained_T)))
    low, high = 100 * np.quantile(gained_T[drawn_RT].mean(1), (0.025, 0.975))
    return (
        f"LegalBench's few-shot rows, the mean over {len(after)} tasks:\n\n{tables.markdown(rows)}\n\nTrained less base model "
        f"{100 * gained_T.mean():+.1f} (95 % interval over tasks {low:+.1f} to {high:+.1f})."
    )


def throughput() -> str:
    """Useful tokens a second against three ways with stock TRL."""
    found = result("legal_training_benchmark_cpu.json")
    each = found["comparisons"][0]
    titles = {
        "packing": "TRL's own packing and fused loss, with transformers' attention",
        "dynamic padding": "TRL, padded to the longest of a batch, fused loss on completions",
        "guide": "the public guide's recipe",
    }
    rows = [
        {
            "against": title,
            "useful tokens a second, theirs": each["useful_tokens_per_second"][name],
            "the notebook is faster by": "{} times ({} to {})".format(each["ratio"][name], *each["ratio_range"][name]),
        }
        for name, title in titles.items()
    ]
    spreads = ", ".join(f"{name} {share:.0%}" for name, share in each["spread"].items())
    return (
        f"{tables.markdown(rows)}\n\nThe notebook: {each['useful_tokens_per_second']['notebook']:,} useful tokens a second of "
        f"{each['clock']} time, {found['repetitions']} turns of {each['sizes']['steps']} steps, on {found['machine']['device']}, "
        f"{found['machine']['threads']} thread, beside other work (load {found['machine']['load_average_after']}). Spread between turns: {spreads}"
        + ("; so the ratios are rough." if max(each["spread"].values()) > 0.1 else ".")
    )


def parameters() -> str:
    """Of data, model and questions, from the declarations."""
    names = ("set_aside_broken", "layout", "max_length", "packing", "test_records", "max_new_tokens")
    return declarations.table(LegalParameters, names=names)
