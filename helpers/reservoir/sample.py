"""A small generative grammar of children's stories: data for a run with no network and no account.

Each story keeps one hero, one friend, one relative and one object to the last sentence, so that a model with a longer
memory predicts it better. The text, in sample_stories.json, is ours.
"""

import json
import random
import re
from pathlib import Path

# One entry is drawn from each pool for each story; several words in one entry, with colons, belong together. A list in
# `opening` and in a plot is one sentence with its alternatives, an empty one begins a paragraph.
GRAMMAR = json.loads(Path(__file__).with_name("sample_stories.json").read_text(encoding="utf-8"))
PLOTS = GRAMMAR["plots"]


def sample_stories(count: int, seed: int) -> list[str]:
    """`count` different stories of some 115 words; the first n are the same for every `count` >= n.

    Paragraphs are parted by one newline. Raises ValueError when `count` is more than one seed can give.
    """
    generator = random.Random(seed)
    stories: dict[str, None] = {}
    for _ in range(20 * count + 100):
        if len(stories) == count:
            return list(stories)
        stories[_story(generator)] = None
    raise ValueError(f"count={count}: seed {seed} gives only {len(stories)} different stories; ask for fewer")


def _story(generator: random.Random) -> str:
    words = _cast(generator)
    for names, pool in GRAMMAR["pools"].items():
        words |= zip(names.split(), generator.choice(pool).split(":"), strict=True)
    slots = GRAMMAR["opening"] + generator.choice(PLOTS)
    sentences = [generator.choice(slot).format_map(words) for slot in slots]
    begun = [re.sub(r"(^|[.!?] )[a-z]", lambda found: found[0].upper(), sentence) for sentence in sentences]
    return re.sub(r"\b(a) (?=[aeiou])", r"\1n ", " ".join(begun).replace("  ", "\n"))


def _cast(generator: random.Random) -> dict[str, str]:
    """The words for hero, friend and relative; the friend of a child is a child, and of an animal an animal."""
    world = GRAMMAR["children"] if generator.random() < 0.7 else GRAMMAR["animals"]
    (hero, kind, he, him, his), (friend, friend_kind, fhe, *_) = generator.sample(world, 2)
    relative, rhe = generator.choice(GRAMMAR["relatives"])
    intro = f"{his} friend {friend}" + (f" the {friend_kind}" if world is GRAMMAR["animals"] else "")
    words = {"hero": hero, "kind": kind, "he": he, "him": him, "his": his}
    return words | {"friend": friend, "fhe": fhe, "intro": intro, "relative": relative, "rhe": rhe}
