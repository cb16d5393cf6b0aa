"""What a tokenizer's chat template makes of a conversation."""

from collections.abc import Mapping, Sequence

import jinja2

from helpers.data.rows import Unusable

MARK = "law-7"


class ChatTemplate:
    """The chat template of a tokenizer.

    Raises ValueError where there is none, or it ends the assistant's turn with no special token: the model could not learn to stop.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        stops = []
        if tokenizer.chat_template:
            turns = [{"role": role, "content": MARK} for role in ("user", "assistant")]
            after = self.encode(self.text(turns).rpartition(MARK)[2])
            added = tokenizer.added_tokens_decoder
            stops = [token for token in after if token in added and added[token].special]
        if not stops:
            raise ValueError(
                "base_model: it has no chat template, or one that ends the assistant's turn with no special token: choose another"
            )
        self.stop_token_id = stops[0]

    def text(self, messages: Sequence[Mapping[str, str]], *, ask: bool = False) -> str:
        """The conversation as the model reads it; with `ask` up to where it has to write. Raises Unusable where it is refused."""
        try:
            return self.tokenizer.apply_chat_template([*messages], tokenize=False, add_generation_prompt=ask)
        except (jinja2.TemplateError, TypeError) as error:
            raise Unusable(f"the chat template of base_model refuses it ({error})") from error

    def prompt(self, record) -> str:
        """What a record asks, up to where the model has to write its last message."""
        return self.text(record.messages[:-1], ask=True)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]  # a template writes its own

    def stop_token_ids(self) -> list[int]:
        """What ends a generation: the end of a turn and, where it is another token, the end of a text."""
        own = self.tokenizer.eos_token_id
        if own in (None, self.stop_token_id):
            return [self.stop_token_id]
        return [self.stop_token_id, own]
