"""Where stories come from: the sample grammar, local files, and data sets in hub layout."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from helpers.reservoir.sample import PLOTS, sample_stories
from helpers.reservoir.stories import StorySplits, batches, load_stories

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
TINYSTORIES = Path("/work/shared/data/tinystories/train_v1.txt")
STORIES = [f"Story {number} is about a cat.\nThe cat was number {number}." for number in range(60)]


def normalised(stories) -> set[str]:
    return {" ".join(story.split()) for story in stories}


@pytest.fixture
def dataset_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write_parquet(path: Path, **columns) -> Path:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


# ---- sample grammar


def test_sample_has_no_duplicates_among_5000():
    stories = sample_stories(5000, seed=0)
    assert len(normalised(stories)) == 5000


def test_sample_stories_are_60_to_150_words_and_leave_no_gap():
    for story in sample_stories(500, seed=1):
        assert 60 <= len(story.split()) <= 150
        assert not set("{}|") & set(story)
        assert "  " not in story
        assert "\n\n" not in story


def test_sample_uses_the_right_article():
    words = " ".join(sample_stories(500, seed=2)).replace("\n", " ").split()
    wrong = [(a, b) for a, b in itertools.pairwise(words) if a in ("a", "A") and b[0] in "aeiou"]
    wrong += [(a, b) for a, b in itertools.pairwise(words) if a in ("an", "An") and b[0] not in "aeiou"]
    assert not wrong


def test_sample_tells_at_least_six_plots():
    clues = ("Where is my|I had it this morning", "turn", "tiny cry|small voice", "afraid of", "broke")
    clues += ("This time, it worked|tried and tried",)
    stories = sample_stories(400, seed=3)
    told = [clue for clue in clues if sum(any(part in story for part in clue.split("|")) for story in stories) >= 10]
    assert len(told) == len(clues) == len(PLOTS)


def test_sample_keeps_its_hero_to_the_end():
    kept = 0
    for story in sample_stories(200, seed=4):
        capitalised = Counter(word.strip('.,!?"') for word in story.split() if word.strip('"')[0].isupper())
        names = [word for word, count in capitalised.items() if count >= 3 and word not in ("He", "She", "I", "The")]
        kept += any(name in story.split("\n")[0] and name in story.split("\n")[-1] for name in names)
    assert kept > 190


def test_a_longer_sample_begins_with_the_shorter_one_and_a_seed_changes_it():
    assert sample_stories(50, seed=5) == sample_stories(200, seed=5)[:50]
    assert sample_stories(50, seed=5) != sample_stories(50, seed=6)


def test_sample_is_the_same_in_another_process():
    code = "import hashlib;from helpers.reservoir.sample import sample_stories as s;"
    code += "print(hashlib.sha256(chr(0).join(s(300, 7)).encode()).hexdigest())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1


# ---- splits


def test_sample_splits_hold_out_5_percent_of_4000_and_share_no_story():
    splits = load_stories("sample", num_stories=0, seed=0)
    assert (len(splits.train), len(splits.validation)) == (3800, 200)
    assert not normalised(splits.train) & normalised(splits.validation)


def test_splits_depend_on_the_seed_only():
    first, again, other = (load_stories("sample", num_stories=100, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.source != other.source
    assert len(first.train) + len(first.validation) == 100


def test_repeats_that_differ_in_white_space_are_removed_and_counted(tmp_path):
    path = tmp_path / "stories.txt"
    repeated = [*STORIES, STORIES[3].replace(" ", "  "), STORIES[4] + " \n", "  "]
    path.write_text("\n<|endoftext|>\n".join(repeated))
    splits = load_stories(str(path), num_stories=0, seed=0)
    assert splits.duplicates_removed == 2
    assert len(splits.train) + len(splits.validation) == 60
    assert normalised(splits.train) | normalised(splits.validation) == normalised(STORIES)


def test_the_seed_decides_which_stories_of_a_file_are_held_out(tmp_path):
    path = tmp_path / "stories.txt"
    path.write_text("\n\n".join(STORIES))
    held_out = {tuple(load_stories(str(path), num_stories=0, seed=seed).validation) for seed in range(4)}
    assert len(held_out) == 4


def test_the_source_says_what_the_data_is_without_its_folder(tmp_path):
    path = tmp_path / "a, b@home.txt"
    path.write_text("\n\n".join(STORIES))
    splits = load_stories(str(path), num_stories=30, seed=5)
    assert splits.source == f"a, b@home.txt, 30 stories, seed 5, sha256 {splits.sha256[:16]}"
    assert splits.provenance == {"source": "a, b@home.txt", "revision": None, "sha256": splits.sha256}
    path.write_text("\n\n".join(reversed(STORIES)))
    assert load_stories(str(path), num_stories=30, seed=5).sha256 != splits.sha256


# ---- local files


@pytest.mark.parametrize("separator", ["\n<|endoftext|>\n", "<|endoftext|>", "\n\n", "\r\n\r\n", "\n \n\n"])
def test_text_file_is_parted_by_end_of_text_or_blank_lines(tmp_path, separator):
    path = tmp_path / "stories.txt"
    path.write_bytes(separator.join(STORIES).encode())
    splits = load_stories(str(path), num_stories=0, seed=0)
    assert {*splits.train, *splits.validation} == set(STORIES)


def test_blank_lines_stay_in_a_story_where_end_of_text_parts_them(tmp_path):
    stories = [story.replace("\n", "\n\n") for story in STORIES]
    path = tmp_path / "stories.txt"
    path.write_text("\ufeff" + "\n<|endoftext|>\n".join(stories), encoding="utf-8")
    splits = load_stories(str(path), num_stories=0, seed=0)
    assert {*splits.train, *splits.validation} == set(stories)


@pytest.mark.parametrize("column", ["text", "story"])
def test_jsonl_and_parquet_give_the_same_stories(tmp_path, column):
    jsonl = tmp_path / "stories.jsonl"
    jsonl.write_text("".join(json.dumps({"id": 1, column: story}) + "\n" for story in STORIES))
    parquet = write_parquet(tmp_path / "stories.parquet", **{"id": list(range(60)), column: STORIES})
    first, second = (load_stories(str(path), num_stories=0, seed=0) for path in (jsonl, parquet))
    assert {*first.train, *first.validation} == set(STORIES)
    assert (first.train, first.validation) == (second.train, second.validation)


@pytest.mark.parametrize("name", ["stories.jsonl", "stories.parquet"])
def test_wrong_column_lists_those_found(tmp_path, name):
    path = tmp_path / name
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"body": story, "id": 1}) + "\n" for story in STORIES))
    else:
        write_parquet(path, body=STORIES, id=list(range(60)))
    with pytest.raises(ValueError, match=r"data_source=.*columns found: body, id"):
        load_stories(str(path), num_stories=0, seed=0)


def test_jsonl_error_names_the_line(tmp_path):
    path = tmp_path / "stories.jsonl"
    path.write_text('{"text": "a"}\n{"text": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        load_stories(str(path), num_stories=0, seed=0)
    for line in (b'{"text"', b'{"text": "Caf\xe9"}'):
        path.write_bytes(b'{"text": "a"}\n\n' + line + b"\n")
        with pytest.raises(ValueError, match="line 3 is not JSON"):
            load_stories(str(path), num_stories=0, seed=0)


def test_file_that_is_no_parquet_is_named(tmp_path):
    path = tmp_path / "stories.parquet"
    path.write_text("no parquet at all")
    with pytest.raises(ValueError, match=r"stories\.parquet.*not a readable parquet"):
        load_stories(str(path), num_stories=0, seed=0)


def test_bytes_that_are_not_utf8_are_named_with_their_position(tmp_path):
    path = tmp_path / "stories.txt"
    before = "\n\n".join(STORIES).encode() + b"\nCaf"
    path.write_bytes(before + b"\xe9 au lait\n")
    with pytest.raises(ValueError, match=rf"stories\.txt.*not UTF-8 .* position {len(before)}:"):
        load_stories(str(path), num_stories=0, seed=0)


@pytest.mark.parametrize("name", ["missing.txt", "/nowhere/at/all", "./missing"])
def test_missing_path_is_file_not_found(name):
    with pytest.raises(FileNotFoundError, match="data_source="):
        load_stories(name, num_stories=0, seed=0)


def test_unknown_suffix_lists_the_known_ones(tmp_path):
    path = tmp_path / "stories.csv"
    path.write_text("text\n")
    with pytest.raises(ValueError, match=r"\.csv.*\.txt, \.jsonl, \.parquet"):
        load_stories(str(path), num_stories=0, seed=0)


def test_fewer_than_20_different_stories_are_refused(tmp_path):
    path = tmp_path / "stories.txt"
    path.write_text("\n\n".join([*STORIES[:19], *STORIES[:19]]))
    with pytest.raises(ValueError, match=r"data_source=.*19 different stories"):
        load_stories(str(path), num_stories=0, seed=0)


# ---- hub layout


def test_hub_layout_keeps_its_validation_split_but_for_stories_trained_on(tmp_path, dataset_cache):
    leaked = STORIES[7].replace(" ", "  ")
    held_out = ["Never seen before.", "  ", leaked, "Also never seen.", "Also never  seen."]
    write_parquet(tmp_path / "data" / "train.parquet", text=[*STORIES, "  "])
    write_parquet(tmp_path / "data" / "validation.parquet", text=held_out)
    splits = load_stories(str(tmp_path / "data"), num_stories=0, seed=0)
    assert splits.train == STORIES
    assert splits.validation == ["Never seen before.", "Also never seen."]
    assert splits.duplicates_removed == 2


def test_hub_layout_draws_training_stories_by_seed(tmp_path, dataset_cache):
    write_parquet(tmp_path / "data" / "train.parquet", story=STORIES)
    write_parquet(tmp_path / "data" / "validation.parquet", story=["Never seen before."])
    first, again, other = (load_stories(str(tmp_path / "data"), num_stories=25, seed=seed) for seed in (1, 1, 2))
    assert list(first.train) == list(again.train)
    assert set(first.train) != set(other.train)
    assert list(first.train) != STORIES[:25]
    assert len(set(first.train)) == 25


def test_hub_layout_without_validation_holds_5_percent_out(tmp_path, dataset_cache):
    write_parquet(tmp_path / "data" / "train.parquet", text=STORIES)
    splits = load_stories(str(tmp_path / "data"), num_stories=0, seed=0)
    assert (len(splits.train), len(splits.validation)) == (57, 3)
    assert {*splits.train, *splits.validation} == set(STORIES)
    assert splits.source == f"data, all stories, seed 0, sha256 {splits.sha256[:16]}"


def test_a_data_set_of_the_hub_is_known_by_its_id_and_revision():
    known = {"name": "owner/name", "revision": "0123abc", "sha256": "0f" * 32, "draw": "all stories, seed 1"}
    splits = StorySplits([], [], 0, **known)
    assert splits.source == f"owner/name@0123abc, all stories, seed 1, sha256 {splits.sha256[:16]}"
    assert splits.provenance == {"source": "owner/name", "revision": "0123abc", "sha256": splits.sha256}


def test_hub_layout_without_text_lists_its_columns(tmp_path, dataset_cache):
    write_parquet(tmp_path / "data" / "train.parquet", body=STORIES)
    with pytest.raises(ValueError, match="columns found: body"):
        load_stories(str(tmp_path / "data"), num_stories=0, seed=0)


def test_hub_out_of_reach_names_the_remedy(tmp_path):
    code = "from helpers.reservoir.stories import load_stories; load_stories('owner/name', num_stories=0, seed=0)"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("ConnectionError: data_source='owner/name'")
    assert 'data_source="sample"' in run.stderr.splitlines()[-1]


def test_batches_are_all_stories_in_order():
    assert list(batches(STORIES, 25)) == [STORIES[:25], STORIES[25:50], STORIES[50:]]


@pytest.mark.skipif(not TINYSTORIES.exists(), reason="optional: a copy of some TinyStories")
def test_real_tinystories_are_read_whole():
    splits = load_stories(str(TINYSTORIES), num_stories=0, seed=0)
    assert len(splits.train) + len(splits.validation) + splits.duplicates_removed == 2316
