"""What an answer costs: `ask` on an installed package of about 50,000 lines, in seconds of processor time.

    python benchmarks/graph_asking.py

The model is the trained encoder of seed 0 of graph_encoders.py, with the lexical baseline, as the notebook saves it. The weights of
their scores are not fitted here, which would take longer than all else: they change the answers and not their cost. A process that
has never seen the package answers three questions, one after the other: what calls a function that was drawn. A second process
finds the graph where the first one has kept it.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.graph_encoders import FOLDER, STEPS, TRAINED, Encoders
from benchmarks.held_out_packages import PACKAGES, Environment
from helpers.graphmer import asking
from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.links.baselines import lexical_scorers
from helpers.graphmer.links.fusion import ScoreFusion
from helpers.graphmer.links.predictor import LinkPredictor
from helpers.graphmer.links.ranking import DIRECTIONS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, QUESTIONS, RELATION = "tornado", 3, "called_by"


def save(folder: Path, steps: int, checkpoints: Path) -> None:
    """The model as the notebook saves it, but for the weights of its scorer: all of them are 1."""
    encoders = Encoders(steps, checkpoints)
    corpus, model = encoders.corpus, dict(encoders.of(0))[TRAINED]()
    scorers = LinkPredictor(model, corpus.validation).ends() | lexical_scorers(corpus.graph, corpus.documents.text)
    weights = dict.fromkeys((*scorers, "counts"), 1.0)
    model.save_pretrained(folder)
    asking.save(folder, corpus, ScoreFusion({}, {("calls", direction): weights for direction in DIRECTIONS}))


def asked(model: str, repository: str, cache: str, names: list[str]) -> dict:
    """Processor seconds of loading the model and of each answer, and by the clock; in this process."""

    def timed(action):
        clock, processor = time.perf_counter(), time.process_time()
        found = action()
        seconds.append({"processor": time.process_time() - processor, "clock": time.perf_counter() - clock})
        return found

    seconds: list[dict] = []
    loaded = timed(lambda: asking.GraphMER.load(model, cache))
    answers = [len(timed(lambda name=name: loaded.ask(repository, name, RELATION))) for name in names]
    return {"load": seconds[0], "answers": seconds[1:], "number": answers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--folder", type=Path, default=Path("outputs/held_out_packages"))
    parser.add_argument("--encoders", type=Path, default=FOLDER, help="folder of the trained encoders")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/graphmer_asking_cpu.json")
    parser.add_argument("--process", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        print(json.dumps(asked(*given.process[:3], given.process[3:])))
        return
    about = report.machine("cpu", ("torch", "transformers"))
    model, cache = given.encoders / "asking", given.encoders / "asking_cache"
    if not (model / asking.SETTINGS).is_file():
        save(model, given.steps, given.encoders)
    shutil.rmtree(cache, ignore_errors=True)
    repository = Environment(given.folder).package(PACKAGE)
    graph = load_graph(repository)
    functions = sorted(one.id for one in graph.entities.values() if one.type in ("function", "method") and one.line)
    names = random.Random(0).sample(functions, QUESTIONS)
    processes = []
    for _ in ("new", "extracted"):
        command = [sys.executable, __file__, "--process", model, repository, cache, *names]
        run = subprocess.run([str(each) for each in command], stdout=subprocess.PIPE, text=True, check=True)
        processes.append(json.loads(run.stdout.splitlines()[-1]))
        print(processes[-1], flush=True)
    report.write(
        given.output,
        about,
        steps=given.steps,
        repository={
            "package": PACKAGES[PACKAGE].pin,
            "files": len(graph.manifest["files"]),
            "lines": sum(
                len((repository / file["path"]).read_bytes().splitlines()) for file in graph.manifest["files"]
            ),
            "entities": len(graph.entities),
        },
        names=names,
        relation=RELATION,
        new=processes[0],
        extracted=processes[1],
    )


if __name__ == "__main__":
    main()
