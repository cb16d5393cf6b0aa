"""Where LeJEPA's texts come from, splits without a shared text, and crops that a resumed run draws again."""

import ast
import csv
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.lejepa import experiment, sample
from helpers.lejepa.crops import crop, in_order, make_views
from helpers.lejepa.data import COLUMNS, load_texts, passages
from helpers.lejepa.experiment import load_corpus
from helpers.lejepa.parameters import EmbeddingParameters, recipe

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
SHARES = {"min_share": 0.3, "max_share": 0.8}
PAIRS = [{"anchor": f"what is thing {i}?", "positive": f"Thing {i} is the number {i * i}."} for i in range(80)]
TRIPLETS = [row | {"negative": f"Nothing of the kind is known of {i}."} for i, row in enumerate(PAIRS)]
LONG = " ".join(f"w{i}" for i in range(50))


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def write_hub(folder, rows, subset=None, files=3):
    """A folder as the hub lays data sets out, in several files."""
    import pyarrow
    import pyarrow.parquet

    (folder / (subset or "data")).mkdir(parents=True)
    for i in range(files):
        name = f"{subset or 'data'}/train-{i:05d}-of-{files:05d}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[i::files]), folder / name)
    return str(folder)


def plain(text):
    return " ".join(text.casefold().split())


def rows(part):
    return [tuple(row.values()) for row in part]


def everything(data):
    return [row for part in parts(data) for row in rows(part)]


def parts(data):
    return data.train, data.validation, data.test


def all_texts(data):
    return {text for part in parts(data) for text in texts(part)}


def texts(part):
    return {plain(text) for row in rows(part) for text in row}


@pytest.fixture
def dataset_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", tmp_path / "modules")


# ---- reading


def write_parquet(path, rows):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.parametrize(
    ("name", "write"), [("d.jsonl", write_jsonl), ("d.csv", write_csv), ("d.parquet", write_parquet)]
)
@pytest.mark.parametrize(("given", "kind"), [(PAIRS, "pairs"), (TRIPLETS, "triplets")])
def test_a_local_file_gives_back_its_rows(tmp_path, name, write, given, kind):
    data = load_texts(write(tmp_path / name, given), seed=0)
    assert data.kind == kind
    assert tuple(data.train.column_names) == COLUMNS[kind]
    assert sorted(everything(data)) == sorted(tuple(row.values()) for row in given)
    assert (len(data.validation), len(data.test)) == (8, 8)


def test_query_is_another_name_of_anchor(tmp_path):
    renamed = [{"query": row["anchor"], "positive": row["positive"]} for row in PAIRS]
    assert rows(load_texts(write_jsonl(tmp_path / "q.jsonl", renamed), seed=0).train) == rows(
        load_texts(write_jsonl(tmp_path / "a.jsonl", PAIRS), seed=0).train
    )


def test_a_title_goes_before_its_text_unless_it_is_there(tmp_path):
    given = [{"title": f"T{i}", "text": f"T{i} again" if i % 2 else "body"} for i in range(8)]
    data = load_texts(write_jsonl(tmp_path / "d.jsonl", given), seed=0)
    assert all_texts(data) == {f"t{i} again" if i % 2 else f"t{i} body" for i in range(8)}


@pytest.mark.parametrize("separator", ["\n\n", "\n"])
def test_a_text_file_is_parted_by_blank_lines_or_else_by_lines(tmp_path, separator):
    (tmp_path / "d.txt").write_text(separator.join(f"Document number {i}." for i in range(9)) + "\n")
    data = load_texts(str(tmp_path / "d.txt"), seed=0)
    assert data.kind == "documents"
    assert all_texts(data) == {f"document number {i}." for i in range(9)}


def test_a_folder_of_texts_is_a_document_a_file_and_empty_ones_are_counted(tmp_path):
    (tmp_path / "inner").mkdir()
    for i in range(7):
        (tmp_path / ("inner" if i % 2 else ".") / f"{i}.{'md' if i % 2 else 'txt'}").write_text(f"Note\n\nof day {i}")
    (tmp_path / "empty.md").write_text(" \n")
    data = load_texts(str(tmp_path), seed=0)
    assert all_texts(data) == {f"note of day {i}" for i in range(7)}
    assert data.empty_removed == 1


def test_of_a_beir_folder_the_queries_are_never_read(tmp_path):
    corpus = [{"_id": str(i), "title": f"title {i}", "text": f"text {i}"} for i in range(9)]
    write_jsonl(tmp_path / "corpus.jsonl", [*corpus, {"_id": "9", "title": "", "text": ""}])
    write_jsonl(tmp_path / "queries.jsonl", [{"_id": "1", "text": "secret question"}])
    data = load_texts(str(tmp_path), seed=0)
    assert all_texts(data) == {f"title {i} text {i}" for i in range(9)}
    assert data.empty_removed == 1


def test_pairs_read_as_documents_are_their_positives(tmp_path):
    data = load_texts(write_jsonl(tmp_path / "d.jsonl", TRIPLETS), seed=0, documents=True)
    assert data.kind == "documents"
    assert all_texts(data) == {plain(row["positive"]) for row in PAIRS}


def test_a_hub_set_is_streamed_one_row_an_anchor(tmp_path, dataset_cache, monkeypatch):
    import datasets

    given = [row | {"negative": f"{row['negative']} {j}"} for row in TRIPLETS for j in range(5)]
    source = write_hub(tmp_path / "hub", [{"query": r["anchor"], **r} for r in given])
    monkeypatch.setattr(datasets, "load_dataset", only_streaming(datasets.load_dataset))
    data = load_texts(source, num_samples=40, seed=0)
    found = everything(data)
    assert (data.kind, len(found), len({row[0] for row in found})) == ("triplets", 40, 40)
    assert set(found) <= {tuple(row.values()) for row in given}
    assert data.duplicates_removed > 0
    again, other = (load_texts(source, num_samples=40, seed=seed) for seed in (0, 1))
    assert (again.source, rows(again.train)) == (data.source, rows(data.train))
    assert {row[0] for row in rows(other.train)} != {row[0] for row in rows(data.train)}


def only_streaming(load):
    def checked(*arguments, streaming=False, **options):
        assert streaming, "the whole set would be downloaded"
        return load(*arguments, streaming=streaming, **options)

    return checked


def test_several_subsets_of_which_none_is_known_are_refused_with_their_names(tmp_path, dataset_cache):
    source = write_subsets(tmp_path / "hub", {"easy": PAIRS, "german": PAIRS})
    with pytest.raises(ValueError, match=r"has the subsets easy, german, of which none is triplet-hard"):
        load_texts(source, seed=0)


def test_the_subset_of_hard_triplets_is_preferred(tmp_path, dataset_cache):
    source = write_subsets(tmp_path / "hub", {"pair": PAIRS, "triplet-hard": TRIPLETS})
    assert load_texts(source, seed=0).kind == "triplets"


def write_subsets(folder, subsets):
    for name, given in subsets.items():
        write_hub(folder, given, subset=name)
    configs = "".join(f"- config_name: {name}\n  data_files: {name}/train-*\n" for name in subsets)
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    return str(folder)


# ---- the docstrings


def test_sample_is_the_standard_librarys_docstrings_and_imports_none_of_its_modules():
    import textwrap

    code = (
        "import sys, random, json; from helpers.lejepa import sample\n"
        "print(json.dumps([[d.text for d in sample.docstrings() if d.name.startswith('textwrap.TextWrapper.fill(')],"
        " [m for m in ('antigravity', 'turtle', 'this', 'wave') if m in sys.modules]]))"
    )
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    import inspect

    assert json.loads(output) == [[inspect.getdoc(textwrap.TextWrapper.fill)], []]


def test_sample_pairs_are_real_and_the_same_each_time():
    data = load_texts("sample", num_samples=2000, seed=3)
    assert (data.kind, len(everything(data)) + data.overlaps_removed) == ("pairs", 2000)
    assert all(anchor.strip() and len(positive.split()) >= 4 for anchor, positive in rows(data.train))
    again = load_texts("sample", num_samples=2000, seed=3)
    assert (again.source, rows(again.train)) == (data.source, rows(data.train))


def test_a_docstring_is_parted_after_its_first_sentence(tmp_path):
    (tmp_path / "module.py").write_text(
        '"""Short."""\n'
        'def f(a, *, b=1):\n    """Adds two\n    numbers. Fast and exact, always so."""\n'
        'class C(dict):\n    """A dictionary that remembers much"""\n    def _hidden(self):\n        """Not for you at all."""\n'
    )
    (tmp_path / "broken.py").write_text("def (:")
    found = sample.docstrings(tmp_path)
    assert sample.pairs(found) == [
        ("module.f(a, *, b=1): Adds two numbers.", "Fast and exact, always so."),
        ("module.C(dict)", "A dictionary that remembers much"),
    ]
    assert sample.documents(found)[1] == "module.C(dict)\nA dictionary that remembers much"


def test_without_source_there_is_no_sample(tmp_path):
    with pytest.raises(FileNotFoundError, match="data_source"):
        sample.docstrings(tmp_path)


# ---- splits


def test_no_text_is_in_two_splits_whatever_the_rows_share(tmp_path):
    generator = random.Random(0)
    given = [
        {
            "anchor": f"Question  {generator.randrange(300)}?" if i % 2 else f"question {generator.randrange(300)}?",
            "positive": f"answer {generator.randrange(300)}",
            "negative": f"answer {generator.randrange(1500)}",
        }
        for i in range(200)
    ]
    data = load_texts(write_jsonl(tmp_path / "d.jsonl", given), seed=1)
    assert min(map(len, parts(data))) >= 2
    assert data.overlaps_removed > 0
    assert len(all_texts(data)) == sum(len(texts(part)) for part in parts(data))


def test_repeats_are_dropped_and_counted_whatever_their_case_and_spaces(tmp_path):
    repeats = [{name: f"  {text.upper()} " for name, text in row.items()} for row in PAIRS[:7]]
    data = load_texts(write_jsonl(tmp_path / "d.jsonl", PAIRS + repeats), seed=0)
    assert data.duplicates_removed == 7
    assert len(everything(data)) == 80


def test_passages_of_a_long_document_stay_together_and_lose_no_word(tmp_path):
    documents = [" ".join(f"d{i}w{j}." for j in range(1000)) for i in range(40)]
    data = load_texts(write_jsonl(tmp_path / "d.jsonl", [{"text": d} for d in documents]), seed=0)
    splits = [{text.split("w")[0] for (text,) in rows(part)} for part in parts(data)]
    assert min(map(len, splits)) >= 1 and sum(map(len, splits)) == 40
    words = [word for (text,) in everything(data) for word in text.split()]
    assert sorted(words) == sorted(" ".join(documents).split())


def test_a_passage_ends_with_a_paragraph_where_one_is_near():
    text = " ".join(f"a{i}" for i in range(45)) + "\n\n" + " ".join(f"b{i}" for i in range(45))
    first, second = passages(text, 48)
    assert (first.split()[-1], second.split()[0]) == ("a44", "b0")
    assert passages("one two", 2) == ["one two"]


@pytest.mark.parametrize("documents", [False, True])
def test_what_chooses_the_model_is_not_what_tests_it(documents):
    params = EmbeddingParameters.defaults().model_copy(
        update={"data_source": "sample", "num_samples": 300, "documents": documents}
    )
    corpus = load_corpus(params)
    asked, answers = [], []
    for benchmark in (corpus.validation, corpus.test):
        asked.append({plain(text) for text in benchmark.queries.values()})
        ids = set().union(*benchmark.relevant.values())
        answers.append({plain(benchmark.corpus[name]) for name in ids})
        assert len(benchmark.queries) > 20 and len(benchmark.corpus) > 250  # training's stand beside them
    assert not asked[0] & asked[1] and not answers[0] & answers[1]
    held_out = [texts(part) for part in (corpus.texts.validation, corpus.texts.test)]
    for own, those in zip(held_out, asked, strict=True):
        assert all(any(query in text for text in own) for query in those)
    trained = texts(corpus.texts.train)
    assert not trained & (held_out[0] | held_out[1]) and not held_out[0] & held_out[1]


def test_all_documents_of_ones_own_are_searched_and_2000_of_a_foreign_set(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "d.jsonl", PAIRS)
    params = EmbeddingParameters.defaults().model_copy(update={"data_source": source, "num_samples": 0})
    corpus = load_corpus(params)
    monkeypatch.setattr(experiment, "INDEXED", 30)
    assert sorted(experiment.searchable(params, corpus)) == sorted(row["positive"] for row in PAIRS)
    assert len(experiment.searchable(params.model_copy(update={"data_source": "sample"}), corpus)) == 30


def test_a_preset_sees_the_rows_that_its_name_says():
    for rows, at_least in ((2000, 3), (50_000, 3), (500_000, 1)):
        planned = recipe(rows, 2, 128)
        assert planned.max_steps * planned.batch_size >= at_least * rows - 3 * planned.batch_size


# ---- bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"anchor": "a", "answer": "b"}] * 9, r"no column `positive`; columns found: anchor, answer. Rename"),
        ([{"positive": "a"}] * 9, r"no column `anchor`"),
        ([{"content": "a"}] * 9, r"no column `text`, nor `anchor`"),
        (PAIRS[:1], r"1 different rows; at least 6"),
        ([*PAIRS, {"anchor": " ", "positive": "b"}], r"line 81 has an empty text in `anchor`; fill"),
        ([*PAIRS, {"anchor": "c", "positive": 3}], r"line 81, column `positive` holds a int"),
        ([{"anchor": f"a{i}", "positive": "one"} for i in range(50)], r"cannot be split"),
        ([r | {"negative": TRIPLETS[1 - i % 2]["positive"]} for i, r in enumerate(PAIRS[:2] * 9)], r"2 different rows"),
    ],
)
def test_bad_rows_are_refused_with_what_to_do(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        load_texts(write_jsonl(tmp_path / "d.jsonl", given), seed=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.csv", b"anchor,positive\na,b\na,b,c\n", r"d.csv', line 3 has more fields than the header; put"),
        ("d.csv", b'anchor,positive\na,"b"c\n', r"d.csv', line 2 is not CSV"),
        ("d.jsonl", b'{"text": "a"}\n\n{"text"\n', r"d.jsonl', line 3 is not JSON"),
        ("d.txt", "ü".encode("latin-1"), r"data_source='.*d.txt': not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_texts(str(tmp_path / name), seed=0)


def test_provenance_names_the_file_without_its_folder_and_the_digest_that_the_source_begins(tmp_path):
    data = load_texts(write_jsonl(tmp_path / "a,b@c.jsonl", PAIRS), seed=0)
    assert (data.provenance["source"], data.provenance["revision"]) == ("a,b@c.jsonl", None)
    assert data.source.endswith(f"sha256 {data.provenance['sha256'][:16]}")
    assert len(data.provenance["sha256"]) == 64


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("nothing.jsonl", FileNotFoundError, "nothing at"),
        (".", ValueError, "no .txt, .md or .parquet"),
    ],
)
def test_a_source_without_texts_is_refused(tmp_path, monkeypatch, source, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        load_texts(source, seed=0)


# ---- crops


def test_a_crop_is_a_span_of_the_text_of_the_asked_length():
    generator = random.Random(0)
    text = LONG.replace("w10 ", "w10\n\t")
    spans = [crop(text, generator, min_share=0.2, max_share=0.5) for _ in range(300)]
    assert all(span in text for span in spans)
    lengths = [len(span.split()) for span in spans]
    assert (min(lengths), max(lengths)) == (10, 25)
    assert {span.split()[0] for span in spans} >= {"w0", "w25"}
    assert len(crop(LONG, generator, min_share=1, max_share=1, max_words=7).split()) == 7


def test_scripts_without_spaces_are_cropped_by_characters():
    span = crop("天地玄黄宇宙洪荒日月盈昃", random.Random(0), min_share=0.5, max_share=0.5)
    assert len(span) == 6
    assert span in "天地玄黄宇宙洪荒日月盈昃"


def documents(tmp_path, count=30):
    text = [{"text": " ".join(f"d{i}w{j}" for j in range(40))} for i in range(count)]
    return load_texts(write_jsonl(tmp_path / "docs.jsonl", text), seed=0)


def test_each_pass_has_every_document_once_with_other_crops(tmp_path):
    data = documents(tmp_path)
    views = make_views(data, seed=0, passes=3, crops=2, **SHARES)
    N = len(data.train)
    assert views.column_names == ["view_1", "view_2"]
    ids = [[text.split("w")[0] for text in views[column]] for column in views.column_names]
    assert ids[0] == ids[1]
    passes = [ids[0][i * N : (i + 1) * N] for i in range(3)]
    assert len({tuple(order) for order in passes}) == 3
    assert all(sorted(order) == sorted(passes[0]) for order in passes)
    assert len({*views["view_1"], *views["view_2"]}) > 5 * N


def test_views_are_the_same_again_whatever_the_number_of_passes_and_differ_by_seed(tmp_path):
    data = documents(tmp_path)
    long, short, other = (make_views(data, seed=s, crops=2, passes=p, **SHARES) for s, p in ((0, 3), (0, 2), (1, 2)))
    assert rows(long)[: len(short)] == rows(short)
    assert rows(other) != rows(short)


def test_views_in_a_folder_are_memory_mapped_and_used_again(tmp_path):
    data = documents(tmp_path)
    options = {"seed": 0, "crops": 2, "passes": 2, **SHARES}
    in_files = make_views(data, folder=tmp_path / "views", **options)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "views").glob("*.arrow")}
    assert len(files) == 1
    assert {Path(entry["filename"]) for entry in in_files.cache_files} == set(files)
    again = make_views(data, folder=tmp_path / "views", **options)
    assert rows(in_files) == rows(again) == rows(make_views(data, **options))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "views").glob("*.arrow")} == files
    make_views(data, folder=tmp_path / "views", **options | {"max_share": 0.5})
    assert len(list((tmp_path / "views").glob("*.arrow"))) == 2


def test_pairs_may_get_crops_of_the_positive_and_triplets_keep_their_negative_last(tmp_path):
    data = load_texts(write_jsonl(tmp_path / "d.jsonl", TRIPLETS), seed=0)
    views = make_views(data, seed=0, crops=1, **SHARES)
    assert views.column_names == ["anchor", "positive", "view_1", "negative"]
    assert all(row["view_1"] in row["positive"] for row in views)
    assert {tuple(row.values()) for row in make_views(data, seed=0, crops=0, **SHARES)} == set(rows(data.train))


def test_a_single_crop_of_documents_is_refused(tmp_path):
    with pytest.raises(ValueError, match="crops=1: must be at least 2"):
        make_views(documents(tmp_path), seed=0, crops=1, **SHARES)


def test_the_trainer_takes_views_in_their_order(tmp_path):
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    from helpers.lejepa.model import _train_tokenizer

    data = documents(tmp_path)
    views = make_views(data, seed=0, crops=2, passes=2, **SHARES)
    tokenizer = _train_tokenizer(views["view_1"]).backend_tokenizer
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"),
        batch_sampler=in_order,
        per_device_train_batch_size=7,
        report_to="none",
        use_cpu=True,
    )
    trainer = SentenceTransformerTrainer(model, arguments, views, loss=MultipleNegativesRankingLoss(model))
    seen = [list(indices) for indices in trainer.get_train_dataloader().batch_sampler]
    assert [i for batch in seen for i in batch] == list(range(len(views)))
    assert all(
        len({views[i]["view_1"].split("w")[0] for i in batch}) == len(batch) for batch in seen[: len(data.train) // 7]
    )


def test_importing_the_data_modules_loads_no_heavy_library():
    for name in ("lejepa/data", "lejepa/crops", "lejepa/sample", "data_files", "data_files", "hub"):
        tree = ast.parse((ROOT / f"helpers/{name}.py").read_text())
        top = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        top |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        assert not {module.split(".")[0] for module in top} & {"torch", "datasets", "transformers", "numpy", "scipy"}
