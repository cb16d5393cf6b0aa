"""What was measured of legal chain-of-thought fine-tuning."""

from build import result, seeds

from helpers import tables


def _share(found: dict) -> str:
    """Count and Wilson interval."""
    return f"{found['count']} of {found['of']} ({100 * found['low']:.1f} to {100 * found['high']:.1f})"


def _runs() -> list[dict]:
    return seeds("legal_cot_sft_sample_cpu")


def format_and_stopping() -> str:
    """Held-out answers of the sample, seed by seed."""
    runs = _runs()
    rows = []
    for run in runs:
        before, after = run["eval"]["before"], run["eval"]["after"]
        losses = before["completion"]["loss"], after["completion"]["loss"]
        rows.append(
            {
                "seed": str(run["seed"]),
                "all sections": _share(after["format"]),
                "ends by itself": _share(after["stops"]),
                "well-formed citation": after["citation"]["count"],
                "steps as asked": after["steps"]["count"],
                "loss on the completions, before and after": "{:.2f}, {:.3f}".format(*losses),
            }
        )
    first = runs[0]
    minutes = [(run["train"]["seconds"] - run["train"]["evaluate_and_save_seconds"]) / 60 for run in runs]
    untrained = ", ".join(str(run["eval"]["before"]["format"]["count"]) for run in runs)
    return (
        f"All {first['model']['trainable']:,} weights of the sample's random model on {first['data']['train_examples']:,} of "
        f"{first['data']['report']['records']:,} of the sample's records, {first['train']['steps']:,} steps, {len(runs)} seeds; "
        f"{first['eval']['after']['format']['of']} held-out questions each, intervals at 95 % in percent. Untrained, "
        f"{untrained} answers have all sections. Training took {min(minutes):.1f} to {max(minutes):.1f} minutes on a shared "
        f"CPU:\n\n{tables.markdown(rows)}"
    )


def first_recipe() -> str:
    """What the recipe before this one gave."""
    run = result("legal_cot_sft_sample_cpu_first_recipe.json")
    return (
        f"A first recipe, {run['data']['report']['records']} records and {run['train']['steps']:,} steps, gave "
        f"{_share(run['eval']['after']['format'])} answers in all sections. The recipe above is a second one, chosen after that "
        "had missed."
    )


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
