"""What was measured of legal chain-of-thought fine-tuning."""

from build import RESULTS, result

from helpers import tables
from helpers.legal.parameters import LegalParameters
from helpers.parameters import MACHINE, Parameters, extra


def _runs() -> list[dict]:
    return [result(path.name) for path in sorted(RESULTS.glob("legal_cot_sft_sample_cpu_seed?.json"))]


def headline() -> str:
    """In a few words, for README.md: right verdicts, seed by seed."""

    def verdicts(part: str) -> tuple[str, str]:
        ours = [run["eval"]["after"][part]["verdict"]["rate"] for run in _runs()]
        near = [run["eval"]["baselines"][part]["nearest training record"]["verdict"]["rate"] for run in _runs()]
        return tuple(" / ".join(f"{100 * rate:.0f}" for rate in rates) for rates in (ours, near))

    (ours, near), (ours_away, near_away) = verdicts("test"), verdicts("areas")
    return (
        f"On invented law with new names and facts **{ours} % right verdicts**, where copying the nearest training record gives {near} %. "
        f"In areas of law that are not in training no better than that: {ours_away} % against {near_away} %"
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
    report, away = run["data"]["report"], run["data"]["report"]["set_aside"]
    before, after = (run["eval"][when]["completion"] for when in ("before", "after"))
    return (
        f"Of {report['records']:,} rows {report['records'] - report['kept']} are set aside ({away['empty field']} with an empty field, "
        f"{away['no steps']} without numbered steps, {away['broken steps']} with steps out of order) and {report['kept']} kept; "
        f"{report['warned']['few steps']} of these have fewer steps than their difficulty asks for. Packing fills "
        f"{run['train']['fill']:.1%} of the blocks. Loss on the completions of {after['rows']} held-out records is {before['loss']:.2f} "
        f"before and {after['loss']:.2f} after {run['train']['steps']} steps."
    )


def throughput() -> str:
    """Useful tokens a second against the public guide's recipe."""
    found = result("legal_training_benchmark_cpu.json")
    each = found["comparisons"][0]
    low, high = each["ratio_range"]
    return (
        f"**{each['ratio']} times** ({low:.2f} to {high:.2f} over {found['repetitions']} turns; "
        f"{each['processor']['ratio']} by processor time) the useful tokens a second, {each['ours_useful_tokens_per_second']:,} against "
        f"{each['peer_useful_tokens_per_second']:,}, on {found['machine']['device']}, {found['machine']['threads']} thread."
    )


def parameters() -> str:
    """Of data, model and questions, from the declarations."""
    own = {name: field for name, field in LegalParameters.model_fields.items() if name not in Parameters.model_fields}
    fields = {name: field for name, field in own.items() if extra(field)["group"] != MACHINE}
    rows = [
        {"parameter": f"`{name}`", "default": f"`{field.default!r}`", "what it is": field.description}
        for name, field in fields.items()
        if name not in ("base_model", "method", "prompt", "num_processes", "eval_steps")
    ]
    return tables.markdown(rows)
