"""What odd files of a user give: how many rows are read, how many are set aside, and with which reasons."""

import io
import json
import zipfile

import pytest

from helpers.data.data_source import locate, read_splits
from helpers.data.rows import SUFFIXES, SetAside
from tests.harness import write

pytestmark = pytest.mark.once

GOOD = "text,label\n" + "".join(f"größer {number},l{number % 2}\n" for number in range(30))
ONE_TO_A_FIELD = 'text,label\n"' + "".join(f"line {number}, and more\n" for number in range(12)) + '",l0\nshort,l1\n'
LINES = [json.dumps({"text": f"ß {number}", "label": "a"}, ensure_ascii=False) for number in range(9)]


def parquet() -> bytes:
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    file = io.BytesIO()
    datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, -1]}, features=features).to_parquet(file)
    return file.getvalue()


def packed() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("set/train.csv", "set/test.csv", "__MACOSX/set/._train.csv"):
            archive.writestr(name, GOOD)
    return file.getvalue()


# name: content; then rows, rows set aside, and what is printed of them; or what the error says
CASES = {
    "quoted.csv": (ONE_TO_A_FIELD, 2, 0, ""),
    "excel.csv": ("\ufeff" + GOOD.replace(",", ";"), 30, 0, ""),
    "fields.csv": (GOOD + "a,b,c\nalone\n", 31, 1, "line 32: not a JSON object, or more fields than the header"),
    "quotes.csv": (GOOD + 'a "b" c,l0\n"a"b,l0\n', 31, 1, "line 33: not a JSON object"),
    "commas.csv": ('text,label\n"' + 9 * ",\n" + '",l0\n', 1, 0, ""),
    "unclosed.csv": (GOOD + '"never closed,l0\na,l1\n', "a double quote in line 32 is not closed"),
    "bytes.csv": (GOOD.encode() + b"\xfc,l0\n", 30, 1, "line 32: bytes that are not UTF-8"),
    "western.csv": (GOOD.encode("cp1252"), "is not UTF-8 (30 lines; encoding perhaps cp125"),
    "notepad.csv": (GOOD.encode("utf-16"), 30, 0, ""),
    "lines.jsonl": ("\n".join([*LINES, "", "{", "3", '{"text": "\\ud800"}']), 9, 3, "line 11: not a JSON object"),
    "array.json": (json.dumps([{"text": "a"}, {"text": "b"}, 3]), 2, 1, "line 3: not a JSON object"),
    "labels.parquet": (parquet(), 2, 0, ""),
    "set.zip": (packed(), 60, 0, ""),
    "csv/train.csv": (GOOD, 30, 0, ""),
    "csv/train-2.csv": (b"PK\3\4", 30, 0, ""),
}


@pytest.mark.parametrize("name", CASES)
def test_an_odd_file_gives_these_rows_and_these_reasons(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    content, *expected = CASES[name]
    write(tmp_path, {"csv/train.csv": GOOD, name: content})
    place = locate(name.partition("/")[0])
    set_aside = SetAside(place.source)
    if len(expected) == 1:
        with pytest.raises(ValueError) as error:
            read(place, set_aside)
        assert expected[0] in str(error.value)
        return
    rows, count, reason = expected
    assert (read(place, set_aside), len(set_aside.rows), set_aside.read) == (rows, count, rows + count)
    assert reason in "\n".join(f"{where}: {text}" for where, text in set_aside.rows)


def read(place, set_aside: SetAside) -> int:
    splits = read_splits(place, SUFFIXES)
    return sum(len(list(set_aside.convert(rows, lambda row: row))) for rows in splits.values())
