"""A prompt's text → the model's token ids: in the chat template where there is one, and the text always as text.

What a prompt holds of a corpus is data. A sentence with ``</s>`` or ``<|im_end|>`` in it must neither end the prompt
nor begin another turn, so such markers are broken up (``< /s>``) before the text is read, and the ids are checked
afterwards: they hold the control tokens of the template or tokenizer itself, and no others.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sentsmith.errors import InputError

# Templates of chat models write markers that need not be tokens: <|user|>, [INST], <<SYS>>.
_MARKER = re.compile(r"<</?\w+>>|<[|｜/]?[\w▁|｜/]+[|｜]?>|\[/?[A-Z_]+\]")
_OPENING = re.compile(r"([<\[{|＜［])")
_ONE_EXCHANGE = ({"role": "user", "content": "x"}, {"role": "assistant", "content": "y"})
# What templates ask for beside the turns, where they do: no text of thought before the answer, and no date of today,
# which would give other answers tomorrow.
_TEMPLATE_OPTIONS = {"enable_thinking": False, "date_string": "26 Jul 2024"}


class NotTextError(ValueError):
    """A prompt that cannot be read as text alone."""


class PromptTokenizer:
    """Turns prompts into ids for one model.

    Args:
        tokenizer: Of transformers.
        encodes: Whether the model is an encoder-decoder. A decoder-only one goes on where the prompt ends, so an end
            sign that the tokenizer adds is taken off; and where its tokenizer has a sign for the beginning, which is
            no end sign too, the prompt begins with it.
        path: Of the model, for the message.

    Raises:
        InputError: The chat template cannot write one turn of a user.
    """

    def __init__(self, tokenizer: Any, *, encodes: bool, path: Path | None = None) -> None:
        self.tokenizer, self.encodes = tokenizer, encodes
        self.chats = bool(getattr(tokenizer, "chat_template", None))
        try:
            template = self._render(*_ONE_EXCHANGE[:1]) if self.chats else ""
            both = self._render(*_ONE_EXCHANGE) if self.chats else ""
        except Exception as error:
            # Whatever a template raises: it is a program of the model's makers.
            first = str(error).partition("\n")[0]
            raise InputError(f"has a chat template that cannot write one turn of a user: {first}", path=path) from error
        tokens = dict(getattr(tokenizer, "added_tokens_decoder", {}))
        unknown = tokenizer.unk_token
        written = {
            token.content: place
            for place, token in tokens.items()
            if token.content != unknown
            and not token.content.isspace()
            and (token.special or token.content in template + both or _MARKER.fullmatch(token.content))
        }
        written |= {
            token: tokenizer.convert_tokens_to_ids(token) for token in tokenizer.all_special_tokens if token != unknown
        }
        self.control = frozenset(written.values())
        self.broken_up = _any_of({*written, *_MARKER.findall(template + both)})
        self.frame = self._control_of(self._ids("x"))

    def __call__(self, text: str) -> list[int]:
        """Return the ids of a whole prompt.

        Raises:
            NotTextError: The text has a character that UTF-8 cannot write, or a control token that cannot be broken up.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise NotTextError(f"the prompt holds {text[error.start]!r}, which is no character") from error
        ids = self._ids(self.as_text(text))
        if self._control_of(ids) != self.frame:
            # A tokenizer may fold look-alikes (＜/s＞) into a marker only after the text has been split.
            plain = unicodedata.normalize("NFKC", text)
            ids = self._ids(_OPENING.sub(r"\1 ", self.as_text(plain)))
        if (found := self._control_of(ids)) != self.frame:
            names = self.tokenizer.convert_ids_to_tokens([token for token in found if token not in self.frame])
            raise NotTextError(f"the prompt holds control tokens of the model ({', '.join(names[:3])})")
        return ids

    def as_text(self, text: str) -> str:
        """Return the text with each marker broken up by a space after its first character."""
        while (broken := self.broken_up.sub(lambda marker: f"{marker[0][0]} {marker[0][1:]}", text)) != text:
            text = broken
        return text

    def _ids(self, text: str) -> list[int]:
        if self.chats:
            rendered = self._render({"role": "user", "content": text})
            return list(self.tokenizer(rendered, add_special_tokens=False, verbose=False)["input_ids"])
        ids = list(self.tokenizer(text, verbose=False)["input_ids"])
        if self.encodes:
            return ids
        begin, end, separator = (getattr(self.tokenizer, f"{name}_token_id") for name in ("bos", "eos", "sep"))
        closing = {end, separator} - {None, begin}
        while ids and ids[-1] in closing:
            ids.pop()
        if begin is not None and begin != end and ids[:1] != [begin]:
            ids.insert(0, begin)
        return ids

    def _render(self, *turns: dict[str, str]) -> str:
        rendered: str = self.tokenizer.apply_chat_template(
            list(turns), tokenize=False, add_generation_prompt=turns[-1]["role"] == "user", **_TEMPLATE_OPTIONS
        )
        return rendered

    def _control_of(self, ids: Iterable[int]) -> list[int]:
        return [token for token in ids if token in self.control]


def _any_of(markers: Iterable[str]) -> re.Pattern[str]:
    # One character cannot be broken up; it stays and is checked with the rest.
    longest = sorted((marker for marker in markers if len(marker) > 1), key=lambda marker: (-len(marker), marker))
    return re.compile("|".join(map(re.escape, longest)) or r"(?!)")
