"""The sample: 211 short stories, written for this project, for a run without network and account."""

import json
from pathlib import Path


def sample_stories() -> list[str]:
    return json.loads(Path(__file__).with_name("sample_stories.json").read_text(encoding="utf-8"))
