"""A saved GraphMER that is asked: about the repository it was measured on, about one that it never saw, in another process."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.graphmer import asking, evaluation, experiment
from helpers.graphmer.__main__ import main
from helpers.graphmer.asking import GUESS, KNOWN, OPEN, GraphMER
from helpers.graphmer.configuration import override, read_configuration
from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.graph.knowledge_graph import read_graph
from helpers.graphmer.links.predictor import ROOT_FIELDS, LinkPredictor
from helpers.graphmer.links.ranking import DIRECTIONS, admitted, score
from helpers.graphmer.searching import search
from helpers.machine import runtime

from .elsewhere import answers
from .graph_run import SMALL
from .test_graph_documents import library

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
SHOP = {
    "shop/__init__.py": "",
    "shop/goods.py": """\
        class Item:
            def price(self, count):
                return count


        def find(name):
            return Item()
        """,
    "shop/main.py": """\
        from shop.goods import find


        def total(basket):
            # adds up
            return sum(find(one).price(1) for one in basket)


        def report(basket, printer):
            printer.price(basket)
            return total(basket)
        """,
}


def write(folder: Path) -> Path:
    for name, text in SHOP.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Corpus, the scorer of the notebook's table, and the folder that it saves."""
    folder = tmp_path_factory.mktemp("trained")
    configuration = override(read_configuration("cpu"), SMALL | {"run.max_steps": 3})
    corpus = experiment.load_corpus(str(library(folder / "sources")), configuration)
    machine = runtime.detect(False, precision="fp32")
    trainer = experiment.train(configuration, corpus, machine, folder / "run")
    scorer = evaluation.with_lexical_baseline(LinkPredictor(trainer.model, corpus.validation), corpus, configuration)
    trainer.save_model(str(folder / "model"))
    asking.save(folder / "model", corpus, scorer)
    return corpus, scorer, folder


@pytest.fixture
def saved(trained, tmp_path):
    return GraphMER.load(trained[2] / "model", tmp_path / "cache")


@pytest.fixture
def shop(tmp_path):
    return write(tmp_path / "shop_repository")


def test_folders_with_a_graph_and_no_source_are_told_apart(saved, shop, tmp_path):
    for name, dropped in (("whole", ""), ("less", "shop/main.py")):
        if dropped:
            (shop / dropped).unlink()
        load_graph(shop).write(tmp_path / name)
    assert "shop.main.total" in saved.read(tmp_path / "whole").graph.entities
    assert "shop.main.total" not in saved.read(tmp_path / "less").graph.entities


def test_what_is_loaded_scores_as_what_was_measured(trained, saved):
    corpus, scorer, folder = trained
    loaded = saved.read(folder / "sources").scorer
    relations = ["calls", "contains", "imports", "overrides"]
    for relation, candidates in admitted(corpus.graph, corpus.ontology, relations).items():
        for direction in DIRECTIONS:
            given = [getattr(one, direction) for one in corpus.splits.test if one.relation == relation]
            given = sorted({"json.dumps", "json.encoder.JSONEncoder.default"} if not given else set(given))[:4]
            there, here = (score(one, given, relation, candidates[direction], direction) for one in (scorer, loaded))
            assert np.ptp(there) > 0
            gap = np.abs(there - here).max()
            assert gap <= 1e-6, (relation, direction, gap)


ELSEWHERE = """
import sys, torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForPreTraining
model = AutoModelForPreTraining.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
batch = load_file(sys.argv[2])
texts = batch.pop("texts")
with torch.no_grad():
    asked, ids, copied = model.query_features(**batch)
    names, bias, tokens, weights = model.entity_features(texts)
met = (tokens[:, :, None] == ids[0]).float() @ copied[0].T
scores = asked[0] @ names.T + bias + (weights[..., None] * met).sum(1).T
save_file({"scores": scores.contiguous()}, sys.argv[3])
assert not [name for name in sys.modules if name.partition(".")[0] == "helpers"]
"""


def test_elsewhere_the_saved_weights_give_the_scores_of_the_table(trained, tmp_path):
    corpus, scorer, folder = trained
    chains, relation = corpus.validation, corpus.relations.id("calls")
    heads = [triple.head for triple in corpus.graph.resolved() if triple.relation == "calls"]
    head = next(one for one in heads if chains.window_count(one) == 1)
    leaves = corpus.relations.of_head(corpus.graph.entities[head].type)
    candidates = admitted(corpus.graph, corpus.ontology, ["calls"])["calls"]["tail"][:50]
    given_end = [one for name, one in scorer.scorers.items() if name.startswith("given end")]
    parts = [one([head], "calls", candidates, "tail") for one in given_end]
    batch = chains.queries([head], [leaves])
    for name in ROOT_FIELDS:  # no padding: what is added up in another order differs in the last bits
        batch[name] = batch[name][:, : chains.encoded.length(chains.encoded.number[head])].contiguous()
    batch["texts"] = torch.from_numpy(
        chains.encoded.text_ids_EC[[chains.encoded.number[name] for name in candidates]].astype(np.int64)
    )
    here = answers(ELSEWHERE, folder / "model", batch, tmp_path)["scores"][[leaves.index(relation)]].numpy()
    assert np.ptp(sum(parts)) > 1
    # Of fp32 sums in another order: 1e-6 of what is added up, since the next number after 17 is 2e-6 away.
    np.testing.assert_allclose(here, sum(parts), rtol=0, atol=1e-6 * sum(map(np.abs, parts)).max())


def test_answers_say_what_is_known_and_where_it_stands(saved, shop):
    known = [one for one in saved.ask(shop, "shop.goods.find", "called_by") if one.status == KNOWN]
    assert [tuple(one) for one in known] == [
        ("shop.main.total", KNOWN, None, "shop/main.py:4", "shop/main.py:6"),
    ]
    callees = saved.ask(shop, "main.total", "calls", most=0)  # the end of its name
    assert {(one.name, one.defined, one.mentioned) for one in callees} == {
        ("builtins.sum", "", "shop/main.py:6"),
        ("shop.goods.find", "shop/goods.py:6", "shop/main.py:6"),
    }


def test_guesses_are_no_known_answers_and_their_probabilities_add_up(saved, shop):
    answers = saved.ask(shop, "shop.main.report", "calls", most=1000)
    known = {one.name for one in answers if one.status == KNOWN}
    rest = [one for one in answers if one.status != KNOWN]
    assert known == {"shop.main.total"}
    assert not known & {one.name for one in rest}
    probabilities = [one.probability for one in rest]
    assert sum(probabilities) == pytest.approx(1) and probabilities == sorted(probabilities, reverse=True)
    status = {one.name: one.status for one in rest}
    assert status["shop.goods.Item.price"] == OPEN  # `printer.price` is written there, of what class nothing says
    assert status["shop.goods.find"] == GUESS


def test_what_was_read_is_found_again_until_a_file_changes(trained, saved, shop, tmp_path):
    before = saved.ask(shop, "shop.goods.find", "called_by", most=3)
    (digest,) = (tmp_path / "cache").iterdir()
    assert read_graph(digest).digest() == saved.read(shop).graph.digest()
    again = GraphMER.load(trained[2] / "model", tmp_path / "cache")
    assert again.ask(shop, "shop.goods.find", "called_by", most=3) == before
    source = shop / "shop" / "main.py"
    source.write_text("\n\n" + source.read_text().replace("find(one)", "one"))
    now = saved.ask(shop, "shop.goods.find", "called_by", most=3)
    assert not [one for one in now if one.status == KNOWN]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_another_process_prints_the_same_answers(trained, saved, shop, tmp_path):
    command = [sys.executable, "-m", "helpers.graphmer", "ask", str(trained[2] / "model"), str(shop)]
    command += ["shop.main.report", "calls", "--cache", str(tmp_path / "elsewhere"), "--most", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    printed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    answers = saved.ask(shop, "shop.main.report", "calls", most=2)
    lines = [line.split() for line in printed.strip().splitlines()[2:]]
    assert [line[:2] for line in lines] == [[one.name, one.status] for one in answers]
    assert all(one.defined in line for one, line in zip(answers, lines, strict=True) if one.defined)


def test_where_few_sources_are_read_it_is_those_that_score_best_without(trained, saved):
    repository = saved.read(trained[2] / "sources")
    some = saved.ask(trained[2] / "sources", "json.dumps", "called_by", most=1000, documents=7)
    rest = [one for one in some if one.status != KNOWN]
    assert len(rest) == 7 and sum(one.probability for one in rest) == pytest.approx(1)
    candidates = repository._candidates["calls"]["head"]
    known = {one.name for one in some if one.status == KNOWN} | {"json.dumps"}
    scores = repository._quick(["json.dumps"], "calls", candidates, "head")[0]
    best = [candidates[place] for place in np.argsort(-scores, kind="stable") if candidates[place] not in known][:7]
    assert {one.name for one in rest} == set(best)
    every = saved.ask(trained[2] / "sources", "json.dumps", "called_by", most=1000, documents=0)
    assert len(every) == len(candidates) - 1  # not itself
    order = [one.name for one in every if one.name in best]
    assert order == [one.name for one in rest]


@pytest.mark.parametrize(
    ("name", "relation", "message"),
    [
        ("shop.goods.fnd", "calls", "name='shop.goods.fnd': no entities of"),
        ("other.find", "calls", "there are shop.goods.find"),
        ("shop.goods.find", "cals", "relation='cals': not in the ontology; known: contains"),
        ("shop.goods.find(name)", "calls", "is a parameter, which has: has_type"),
    ],
)
def test_what_cannot_be_asked_is_an_error_that_says_what_can(saved, shop, name, relation, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        saved.ask(shop, name, relation)


FORMER = {  # modules as they were named before, beside the weights
    "configuration_graphmer": "architecture",
    "modeling_graphmer": "model",
    "copy_head": "token_match",
    "graph_attention": "hgat",
}


def test_a_model_that_was_saved_before_its_modules_were_renamed_answers_as_before(trained, saved, shop, tmp_path):
    former = shutil.copytree(trained[2] / "model", tmp_path / "former")
    for now, then in FORMER.items():
        (former / f"{now}.py").rename(former / f"{then}.py")
    config = json.loads((former / "config.json").read_text())
    config["auto_map"] |= {
        "AutoConfig": "architecture.GraphMERConfig",
        "AutoModelForPreTraining": "model.GraphMERForPreTraining",
    }
    (former / "config.json").write_text(json.dumps(config))
    weights = load_file(former / "model.safetensors")
    save_file(weights | {"ranges_RY": torch.zeros(2, 3)}, former / "model.safetensors", {"format": "pt"})
    loaded = GraphMER.load(former, tmp_path / "other")
    for question in (("shop.goods.find", "called_by"), ("shop.main.report", "calls")):
        assert loaded.ask(shop, *question) == saved.ask(shop, *question)


def test_a_model_of_another_format_says_what_to_do(trained, tmp_path):
    other = shutil.copytree(trained[2] / "model", tmp_path / "other")
    settings = json.loads((other / asking.SETTINGS).read_text())
    (other / asking.SETTINGS).write_text(json.dumps(settings | {"schema": 0}))
    with pytest.raises(ValueError, match="schema=0: this code reads 1; ask with the code that saved it, or train anew"):
        GraphMER.load(other)


def test_a_folder_without_a_saved_model_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["ask", str(tmp_path), str(tmp_path), "a.b", "calls"])
    assert "no graphmer.json there" in capsys.readouterr().err


# ---- search


def test_search_finds_the_function_whose_name_and_source_have_the_words(shop, tmp_path, capsys):
    assert main(["search", str(shop), "sum of the prices in total", "--cache", str(tmp_path), "--most", "2"]) == 0
    first = capsys.readouterr().out.splitlines()[2].split()
    assert first[0] == "shop.main.total" and first[-1] == "shop/main.py:4"
    assert search(shop, "zebra", cache=tmp_path) == []
    with pytest.raises(ValueError, match=r"question='\?': has no word"):
        search(shop, "?", cache=tmp_path)
