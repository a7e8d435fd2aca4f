"""Instructions as token ids: the public prompt, each text tokenised once.

Letters: N rows, P tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from rlvla.errors import CheckpointError, ConfigError
from rlvla_model_openvla_oft.header import BINS, Header

PROMPT = "In: What action should the robot take to {}?\nOut:"
BOS, STOP, BLANK = 1, 2, 29871
"""Of Llama's vocabulary: begin of text, end of text, and the lone blank that training put after ``Out:``."""

_ROUND = 8
"""Prompts of different lengths are padded to a multiple of this, so that there are few shapes."""


class Prompts:
    """Makes ids of instructions.

    Args:
        header: of the checkpoint, whose folder (or its base's) holds ``tokenizer.json``.
        width: pad every prompt to this many tokens; None: to the longest of a batch, or a little more.

    Raises:
        CheckpointError: no tokenizer, or not one with the ids that the weights were trained with.
    """

    def __init__(self, header: Header, width: int | None) -> None:
        self.file = header.tokenizer()
        try:
            self._tokenizer = Tokenizer.from_file(str(self.file))
        except Exception as error:  # the library knows no narrower one
            raise CheckpointError(f"{self.file} cannot be read as a tokenizer: {error}; download it again") from error
        self._tokenizer.no_truncation()  # what a file says of these holds for whoever saved it
        self._tokenizer.no_padding()
        self._pad, self._width = header.pad_id, width
        self._known: dict[str, list[int]] = {}
        self._check(header)

    def _check(self, header: Header) -> None:
        wanted = {"<s>": BOS, "</s>": STOP, "▁": BLANK, "<PAD>": header.pad_id}
        wrong = [
            f"{token!r} is {self._tokenizer.token_to_id(token)}, wanted {number}"
            for token, number in wanted.items()
            if self._tokenizer.token_to_id(token) != number
        ]
        words = self._tokenizer.get_vocab_size(with_added_tokens=False)
        if words != header.last_action_id:
            wrong.append(
                f"its vocabulary ends at {words}, the {BINS} action tokens of the weights at {header.last_action_id}"
            )
        if wrong:
            raise CheckpointError(
                f"{self.file} is not the tokenizer of these weights: {'; '.join(wrong)}: take the tokenizer.json that lay "
                "beside them"
            )

    def check(self, instructions: Iterable[str]) -> None:
        """Make sure that instructions fit in the width.

        Raises:
            ConfigError: one is longer than ``model.prompt_tokens``.
        """
        for one in instructions:
            if one and self._width is not None:
                self.ids(one)

    def ids(self, instruction: str) -> list[int]:
        """Return the prompt's ids: begin of text first, the lone blank last.

        Raises:
            ConfigError: longer than ``model.prompt_tokens``.
        """
        if instruction not in self._known:
            ids = self._tokenizer.encode(PROMPT.format(instruction.lower())).ids
            ids = ids if ids[0] == BOS else [BOS, *ids]
            self._known[instruction] = ids if ids[-1] == BLANK else [*ids, BLANK]
        ids = self._known[instruction]
        if self._width is not None and len(ids) > self._width:
            raise ConfigError(
                f"model.prompt_tokens: got {self._width}, but the prompt of {instruction!r} has {len(ids)} tokens: raise it, or "
                "leave it out"
            )
        return ids

    def batch(self, instructions: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Return ids ``[N, P]`` and which of them are there (bool; None: all). Padding lies after begin of text."""
        rows = [self.ids(one) for one in instructions]
        longest = max(map(len, rows))
        if self._width is None and all(len(row) == longest for row in rows):
            return torch.tensor(rows), None
        width = self._width or -(-longest // _ROUND) * _ROUND
        ids_NP = torch.tensor([[BOS, *[self._pad] * (width - len(row)), *row[1:]] for row in rows])
        there_NP = torch.tensor([[True, *[False] * (width - len(row)), *[True] * (len(row) - 1)] for row in rows])
        return ids_NP, there_NP
