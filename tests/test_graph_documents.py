"""Text of entities against what `ast` says of the same files, and where names stand in it."""

import ast
import hashlib
import http
import json
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pytest

from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.graph.knowledge_graph import DEFINED, EXTERNAL, Entity, build_graph
from helpers.graphmer.text.documents import Documents, entity_text, leaf_texts, shown_name
from helpers.graphmer.text.tokenizer import PAD, SEP, encode, train_tokenizer
from helpers.graphmer.text.windows import EncodedDocuments

pytestmark = pytest.mark.once


def library(folder: Path) -> Path:
    """Two packages of the standard library as a folder of one's own."""
    for package in (json, http):
        source = Path(package.__file__).parent
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def graph(folder):
    return load_graph(folder)


@pytest.fixture(scope="module")
def documents(graph, folder):
    return Documents.read(graph, folder)


@pytest.fixture(scope="module")
def tokenizer(documents):
    return train_tokenizer(documents.sources(), 2000)


@pytest.fixture(scope="module")
def encoded(documents, tokenizer):
    return EncodedDocuments(documents, tokenizer, roots=100)


def parsed(folder: Path, module: str):
    path = folder.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text()
    return text, ast.parse(text)


def test_a_document_is_the_name_and_what_ast_finds_there(folder, graph, documents):
    seen = 0
    for module in ("json.encoder", "json.decoder", "http.client", "http.cookies"):
        text, tree = parsed(folder, module)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                owners = [
                    one
                    for one in graph.entities.values()
                    if one.module == module and one.line == node.lineno and one.name == node.name
                ]
                source = "\n".join(text.split("\n")[node.lineno - 1 : node.end_lineno])
                for entity in owners:
                    name, _, shown = documents.text(entity.id).partition("\n")
                    assert name == shown_name(entity.id)
                    # dedent leaves lines alone that stand further left than the definition
                    assert [line.strip() for line in shown.split("\n")] == [line.strip() for line in source.split("\n")]
                    if all(line.startswith(" " * node.col_offset) or not line.strip() for line in source.split("\n")):
                        assert [one.rstrip() for one in shown.split("\n")] == [
                            one.rstrip() for one in textwrap.dedent(source).split("\n")
                        ]
                        seen += 1
    assert seen > 100


def test_a_module_is_its_whole_file(folder, documents):
    text, _ = parsed(folder, "json.scanner")
    assert documents.text("json.scanner").rstrip("\n") == f"json.scanner\n{text}".rstrip("\n")
    assert list(documents.sources(["json.scanner"])) == [text]


def test_what_has_no_lines_of_its_own_is_its_name(graph, documents):
    kinds = set()
    for entity in graph.entities.values():
        if entity.type in ("parameter", "variable", "field") or entity.status != DEFINED:
            assert documents.text(entity.id) == shown_name(entity.id)
            assert [anchor.entity for anchor in documents.anchors(entity.id)] == [entity.id]
            kinds.add((entity.type, entity.status))
    assert ("parameter", DEFINED) in kinds
    assert any(status == EXTERNAL for _, status in kinds)


def test_anchors_are_the_names_of_definitions_on_their_lines(graph, documents):
    seen = set()
    for entity in graph.entities.values():
        text = documents.text(entity.id)
        anchors = documents.anchors(entity.id)
        assert anchors[0][:2] == (entity.id, 0)
        assert text[: anchors[0].end] == shown_name(entity.id)
        assert len({anchor.start for anchor in anchors}) == len(anchors)
        for anchor in anchors[1:]:
            inner = graph.entities[anchor.entity]
            assert text[anchor.start : anchor.end] == inner.name
            assert inner.module == entity.module
            line = text.count("\n", 0, anchor.start) - 1 + entity.line
            assert inner.line <= line <= min(inner.line + 2, inner.end_line)
            seen.add(inner.type)
    assert {"method", "function", "class", "parameter", "constructor"} <= seen


def test_every_method_of_a_class_is_an_anchor_of_it(graph, documents):
    methods = {one.tail for one in graph.triples if one[:2] == ("json.encoder.JSONEncoder", "contains")}
    methods = {one for one in methods if graph.entities[one].line and graph.entities[one].type != "field"}
    assert len(methods) > 3
    assert methods <= {anchor.entity for anchor in documents.anchors("json.encoder.JSONEncoder")}


def test_a_parameter_of_its_functions_name_is_the_second_mention():
    graph = build_graph([Entity("m.at", "function", "at", DEFINED, "m", 1, 2), Entity("m.at(at)", "parameter", "at", DEFINED, "m", 1, 1), Entity("m.C", "class", "C", DEFINED, "m", 3, 5), Entity("m.C.at", "method", "at", DEFINED, "m", 4, 5), Entity("m.C.at(at)", "parameter", "at", DEFINED, "m", 4, 4)], [], {})  # fmt: skip
    documents = Documents(graph, {"m": "def at(at):\n    pass\nclass C:\n    def at(at):\n        pass\n"})
    text = documents.text("m.C")
    starts = sorted(anchor.start for anchor in documents.anchors("m.C"))
    assert starts == [0, text.index("at("), text.index("at)")]


def test_a_java_definition_is_found_behind_its_annotations(tmp_path):
    source = "package shop;\n@Deprecated\npublic class Till {\n    @Override\n    public void run() { }\n}\n"
    (tmp_path / "Till.java").write_text(source.replace("\n", "\r\n"), newline="")
    content = (tmp_path / "Till.java").read_bytes()
    entities = [Entity("shop.Till", "class", "Till", DEFINED, "shop.Till", 2, 6), Entity("shop.Till.run", "method", "run", DEFINED, "shop.Till", 4, 5)]  # fmt: skip
    file = {
        "path": "Till.java",
        "module": "shop.Till",
        "language": "java",
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    graph = build_graph(entities, [], {"files": [file], "failed": []})
    documents = Documents.read(graph, tmp_path)
    assert documents.text("shop.Till.run") == "shop.Till.run\n@Override\npublic void run() { }"
    text = documents.text("shop.Till")
    assert [text[one.start : one.end] for one in documents.anchors("shop.Till")] == ["shop.Till", "run"]


def test_sources_are_decoded_as_they_say(tmp_path):
    (tmp_path / "m.py").write_bytes("# -*- coding: latin-1 -*-\ndef f():\n    return 'é'\n".encode("latin-1"))
    documents = Documents.read(load_graph(tmp_path), tmp_path)
    assert documents.text("m.f") == "m.f\ndef f():\n    return 'é'"


def test_a_written_graph_has_names_only(graph, tmp_path):
    graph.write(tmp_path)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "entities.jsonl").write_text(
        '{"id": "a.f", "type": "function"}\n{"id": "a", "type": "module"}\n'
    )
    (tmp_path / "plain" / "triples.jsonl").write_text('{"head": "a", "relation": "contains", "tail": "a.f"}\n')
    for folder in (tmp_path, tmp_path / "plain"):
        loaded = load_graph(folder)
        for documents in (Documents.read(loaded, folder), Documents.read(loaded)):
            assert all(documents.text(one) == shown_name(one) for one in loaded.entities)


def test_a_changed_or_missing_source_is_refused(tmp_path):
    file = tmp_path / "m.py"
    file.write_text("def f(): pass\n")
    graph = load_graph(tmp_path)
    file.write_text("def f(): return\n")
    with pytest.raises(ValueError, match=r"m\.py: changed since the graph was built"):
        Documents.read(graph, tmp_path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"m\.py"):
        Documents.read(graph, tmp_path)


def test_names_of_leaves_and_of_candidates():
    method = Entity("json.encoder.JSONEncoder.default", "method", "default")
    assert leaf_texts(method) == ("JSONEncoder.default", "default")
    assert entity_text(method) == "method json.encoder.JSONEncoder.default"
    assert leaf_texts(Entity("m.C.f(x)", "parameter", "x")) == ("f(x)", "x")
    assert leaf_texts(Entity("m.f.<locals>.g", "function", "g")) == ("f.g", "g")
    assert entity_text(Entity("m.f.<locals>.g", "function", "g")) == "function m.f.g"
    assert leaf_texts(Entity("repository/m", "module", "m")) == ("m",)


# ---- tokens


def test_encoded_documents_are_the_beginnings_of_the_texts(graph, documents, encoded, tokenizer):
    cut = 0
    for entity in graph.entities:
        number = encoded.number[entity]
        (whole,) = encode(tokenizer, [documents.text(entity)])
        np.testing.assert_array_equal(encoded.document(number), whole[:100])
        assert encoded.length(number) == min(len(whole), 100)
        cut += len(whole) > 100
    assert cut > 50


def test_windows_go_on_where_the_one_before_ended(graph, documents, tokenizer):
    encoded, counts = EncodedDocuments(documents, tokenizer, roots=100, windows=4), set()
    for number, entity in enumerate(encoded.entities):
        (whole,) = encode(tokenizer, [documents.text(entity.id)])
        name, count = encoded.name_length(number), encoded.count(number, 60)
        assert whole[:name] == encode(tokenizer, [shown_name(entity.id) + "\n" * (len(whole) > name)])[0]
        shown = [encoded.window(number, window, 60) for window in range(count)]
        assert all(len(ids) <= 60 and ids[:name].tolist() == whole[: min(name, 60)] for ids, _ in shown)
        source = [token for ids, _ in shown for token in ids[name:].tolist()]
        assert source == whole[name : name + len(source)]
        assert len(source) == len(whole) - name or count in (1, 4)
        for window, (ids, shift) in enumerate(shown):
            assert shift == window * (60 - name)
            assert ids[name:].tolist() == whole[name + shift :][: 60 - name]
        counts.add(count)
    assert counts == {1, 2, 3, 4}


def test_mentions_are_the_windows_where_the_whole_name_stands(graph, documents, tokenizer):
    encoded, found = EncodedDocuments(documents, tokenizer, roots=100, windows=4), 0
    for triple in list(graph.resolved())[::7]:
        number, tail = encoded.number[triple.head], encoded.number[triple.tail]
        if encoded.count(number, 60) == 1:
            continue
        wanted = encode(tokenizer, [encoded.entities[tail].name])[0]
        expected = []
        for window in range(encoded.count(number, 60)):
            ids = encoded.window(number, window, 60)[0][encoded.name_length(number) :].tolist()
            if any(ids[at : at + len(wanted)] == wanted for at in range(len(ids))):
                expected.append(window)
        assert encoded.mentions(number, tail, 60) == expected
        found += bool(expected)
    assert found > 50


def test_long_blank_runs_do_not_shorten_a_document(tokenizer):
    source = "def f():\n" + "".join(f"    x = {' ' * 150}{n}\n" for n in range(60))
    graph = build_graph([Entity("m.f", "function", "f", DEFINED, "m", 1, 61)], [], {})
    documents = Documents(graph, {"m": source})
    encoded = EncodedDocuments(documents, tokenizer, roots=200)
    np.testing.assert_array_equal(encoded.document(0), encode(tokenizer, [documents.text("m.f")])[0][:200])


def test_token_anchors_are_the_names(graph, documents, encoded, tokenizer):
    inner = 0
    for entity, number in encoded.number.items():
        ids = encoded.document(number)
        shown = {anchor.entity for anchor in documents.anchors(entity)}
        for place, (named, first, length) in enumerate(encoded.anchors(number).tolist()):
            text = tokenizer.decode(ids[first : first + length])
            if place == 0:
                assert named == number
                whole = shown_name(entity)
                assert (whole.endswith(text) and (first == 0 or whole[-len(text) - 1] in "./(")) or length == 8
            else:
                name = encoded.entities[named].name
                assert encoded.entities[named].id in shown
                assert text == name or (length == 8 and name.startswith(text))
                inner += 1
    assert inner > 500


def test_names_are_found_behind_other_scripts(tokenizer):
    source = 'class Größe:\n    """漢字 — é"""\n    def maß(self):\n        pass\n'
    entities = [Entity("m.Größe", "class", "Größe", DEFINED, "m", 1, 4), Entity("m.Größe.maß", "method", "maß", DEFINED, "m", 3, 4)]  # fmt: skip
    encoded = EncodedDocuments(Documents(build_graph(entities, [], {}), {"m": source}), tokenizer, roots=100)
    _, first, length = encoded.anchors(0)[1].tolist()
    assert tokenizer.decode(encoded.document(0)[first : first + length]) == "maß"


def test_leaves_end_where_there_is_room(encoded, tokenizer):
    for entity, ids in zip(encoded.entities, encoded.leaf_ids_EL.tolist(), strict=True):
        used = [one for one in ids if one != PAD]
        assert ids == used + [PAD] * (7 - len(used))
        long, *short = leaf_texts(entity)
        whole = encode(tokenizer, [long])[0]
        if len(whole) > 7:
            whole = encode(tokenizer, [(long, *short)[-1]])[0]
        assert used == [*whole, SEP][:7]


def test_a_candidate_that_is_too_long_keeps_its_end(encoded, tokenizer, documents):
    narrow = EncodedDocuments(documents, tokenizer, roots=8, entity_tokens=6)
    for number, entity in enumerate(encoded.entities):
        whole = encode(tokenizer, [entity_text(entity)])[0]
        assert [one for one in narrow.text_ids_EC[number].tolist() if one != PAD] == whole[-6:]
        assert narrow.length(number) <= 8


def test_sizes_below_one_are_refused(documents, tokenizer):
    with pytest.raises(ValueError, match="leaf_tokens=0"):
        EncodedDocuments(documents, tokenizer, roots=8, leaf_tokens=0)
