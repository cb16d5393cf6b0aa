"""The sample: 300 short stories, written for this project, for a run with no network and no account.

Sixty are told once. Two dozen tales are told ten times each, with other people, animals, things and sentences.
"""

import json
from pathlib import Path


def sample_stories() -> list[str]:
    return json.loads(Path(__file__).with_name("sample_stories.json").read_text(encoding="utf-8"))
