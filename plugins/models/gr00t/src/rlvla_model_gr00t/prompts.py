"""Pictures' places and instructions as token ids: the public chat form, each text tokenised once.

Letters: N rows, S tokens, M cameras.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from rlvla.checkpoint_header import read_as, read_json
from rlvla.errors import CheckpointError
from rlvla_model_gr00t.header import Header

BEFORE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
PICTURE = "<image {}><img>{}</img>"
PIECE = "<IMG_CONTEXT>"
AFTER = "{}<|im_end|>\n<|im_start|>assistant\n"
PAD = 0
FIXED_WIDTH = 570
"""What published RL code pads sequences to: two pictures and a text of some 40 tokens."""

_ROUND = 8
"""Sequences of different lengths are padded to a multiple of this, so that there are few shapes."""
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen cuts text before its byte pairs."""


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return Qwen's tokenizer from ``tokenizer.json``, or from its vocabulary, merges and added tokens.

    Raises:
        CheckpointError: files that do not go together.
    """
    whole = folder / "tokenizer.json"
    try:
        if whole.is_file():
            return Tokenizer.from_file(str(whole))
        pairs = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:  # the library raises bare exceptions
        raise CheckpointError(f"{folder} holds no readable tokenizer: {error}") from error
    made = Tokenizer(pairs)
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    file = folder / "added_tokens.json"
    added = sorted(read_as(dict[str, int], read_json(file), file).items(), key=lambda one: one[1])
    made.add_special_tokens([AddedToken(text, normalized=False) for text, _ in added])
    if wrong := [text for text, number in added if made.token_to_id(text) != number]:
        raise CheckpointError(
            f"{folder}: added_tokens.json gives {wrong[0]!r} the id {dict(added)[wrong[0]]}, but {made.token_to_id(wrong[0])} "
            "is the next free one after vocab.json and the tokens before it: files of different tokenizers"
        )
    return made


class Prompts:
    """Makes ids of instructions.

    Args:
        header: of the checkpoint.
        tokenizer: folder with its files.
        cameras: M.
        form: of the instruction.
        width: pad every sequence to this many tokens; None: to the longest of a batch, or a little more.

    Raises:
        CheckpointError: not the tokenizer that the weights were trained with.
    """

    def __init__(
        self, header: Header, tokenizer: Path, cameras: int, form: Literal["plain", "listed"], width: int | None
    ) -> None:
        self._tokenizer, self._form, self._width = read_tokenizer(tokenizer), form, width
        piece = self._tokenizer.token_to_id(PIECE)
        if piece != header.image_token:
            raise CheckpointError(
                f"{tokenizer} is not the tokenizer of these weights: {PIECE} is {piece}, wanted {header.image_token}"
            )
        pictures = "".join(PICTURE.format(number, PIECE * header.siglip.tokens) for number in range(1, cameras + 1))
        self._prefix = self._encoded(BEFORE + pictures)
        self._known: dict[str, list[int]] = {}
        self.places = torch.tensor([place for place, one in enumerate(self._prefix) if one == piece])
        """int64, where pictures' tokens are."""
        wanted = cameras * header.siglip.tokens
        assert len(self.places) == wanted, "a special token was cut in pieces"

    @property
    def text_from(self) -> int:
        """Place of the first token that differs between instructions."""
        return len(self._prefix)

    def _encoded(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def ids(self, instruction: str) -> list[int]:
        """Return a sequence's ids.

        Raises:
            ValueError: longer than ``model.pad_to``.
        """
        if instruction not in self._known:
            text = instruction if self._form == "plain" else str([instruction])
            self._known[instruction] = self._prefix + self._encoded(AFTER.format(text))
        ids = self._known[instruction]
        if self._width is not None and len(ids) > self._width:
            raise ValueError(
                f"pictures and the instruction {instruction!r} make {len(ids)} tokens, model.pad_to is {self._width}: raise it"
            )
        return ids

    def batch(self, instructions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return ids ``[N, S]``, padded on the right, and which of them are there (bool)."""
        rows = [self.ids(one) for one in instructions]
        width = self._width or -(-max(map(len, rows)) // _ROUND) * _ROUND
        ids_NS = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])
        length_N = torch.tensor([len(row) for row in rows])
        return ids_NS, torch.arange(width) < length_N[:, None]
