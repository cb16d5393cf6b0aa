"""Words of a text in any script, for BM25: this file needs nothing but Python, and is copied beside a saved search.

words("Größe der Straße: 12 km")    ["grösse", "der", "strasse", "12", "km"]
words("学习 in Python")                ["学", "习", "学习", "in", "python"]
code_words("parseHTTPHeaders(x_1)")  ["parse", "http", "headers", "x", "1"]
"""

import functools
import re
import unicodedata
from collections.abc import Callable

# Scripts that put no space between words: Thai, Lao, Myanmar, Khmer, New Tai Lue, Tai Tham, kana, Chinese. Hangul is one of them
# here, because a Korean word carries its particles.
CHINESE = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
PAIRED = (
    f"{CHINESE}\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u1980-\u19df\u1a20-\u1aaf\u3040-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\ua9e0-\ua9ff\uaa60-\uaa7f\uac00-\ud7af"
)
RUNS = re.compile(f"([{PAIRED}]+)|[^{PAIRED}\\s]+")
IDEOGRAPH = re.compile(f"[{CHINESE}]")
UNIT = re.compile(f"[{PAIRED}]|[^{PAIRED}\\s]+")
UPPER, LOWER = "A-ZÀ-ÖØ-ÞΑ-ΫЀ-Я", "a-zß-öø-ÿά-ώа-џ"
# Where a word of an identifier begins: parse|Headers, HTTP|Headers, pool|2, 2|pool.
INSIDE_IDENTIFIERS = re.compile(
    f"(?<=[{LOWER}])(?=[{UPPER}])|(?<=[{UPPER}])(?=[{UPPER}][{LOWER}])|(?<=[^\\W\\d_])(?=\\d)|(?<=\\d)(?=[^\\W\\d_])"
)


def words(text: str, stem: Callable[[str], str] | None = None) -> list[str]:
    """Words in order and in lower case; of a script without spaces each pair of neighbouring characters,
    after the Chinese characters themselves, which can be words.

    A letter, a combining mark and a digit belong to a word, any other character ends it. Equal characters that are written in
    different ways (NFKC) are one.

    stem: what makes a stem of a word, where the language is known; pairs are left as they are.
    """
    result = []
    for run in RUNS.finditer(_fold(text)):
        word = run.group()
        if run.group(1):
            result += _pairs(word)
        elif stem:
            result.append(stem(word))
        else:
            result.append(word)
    return result


def code_words(text: str, stem: Callable[[str], str] | None = None) -> list[str]:
    """As `words`, and identifiers are taken apart: camelCase, snake_case, numbers."""
    return words(INSIDE_IDENTIFIERS.sub(" ", text), stem)


def spans(text: str) -> list[tuple[int, int]]:
    """Where the words of the text are, as they stand there between white space; of a script without spaces each character is one."""
    return [match.span() for match in UNIT.finditer(text)]


def _fold(text: str) -> str:
    return "".join(map(_visible, unicodedata.normalize("NFKC", text).casefold()))


@functools.cache
def _visible(character: str) -> str:
    """The character, a space where it belongs to no word, nothing where it is not seen: soft hyphens, joiners, marks of direction."""
    category = unicodedata.category(character)
    if category == "Cf":
        return ""
    return character if category[0] in "LMN" else " "


def _pairs(run: str) -> list[str]:
    if len(run) == 1:
        return [run]
    pairs = [run[place : place + 2] for place in range(len(run) - 1)]
    return IDEOGRAPH.findall(run) + pairs
