"""Pictures' places and instructions as token ids: the public chat form, each text tokenised once.

Letters: N rows, S tokens, M cameras.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from rlvla.checkpoint_header import read_as, read_json
from rlvla.errors import CheckpointError, ConfigError
from rlvla_model_gr00t.header import Header

log = logging.getLogger(__name__)

BEFORE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
PICTURE = "<image {}><img>{}</img>"
PIECE = "<IMG_CONTEXT>"
AFTER = "{}<|im_end|>\n<|im_start|>assistant\n"
_SPECIAL = ("<|im_start|>", "<|im_end|>", "<img>", "</img>")
"""Beside ``PIECE``: texts that must be one token each, as they were when the weights were trained."""
PAD = 0
FIXED_WIDTH = 570
"""What published RL code pads sequences to: two pictures and a text of some 40 tokens."""

_ROUND = 8
"""Sequences of lengths that nobody chose are padded to a multiple of this, so that there are few shapes."""
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen cuts text before its byte pairs."""


def _unbounded(tokenizer: Tokenizer) -> Tokenizer:
    """Undo what a file says of truncation and padding, which holds for whoever saved it."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return Qwen's tokenizer from ``tokenizer.json``, or from its vocabulary, merges and added tokens.

    Raises:
        CheckpointError: files that do not go together.
    """
    whole = folder / "tokenizer.json"
    try:
        if whole.is_file():
            return _unbounded(Tokenizer.from_file(str(whole)))
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
        width: pad every sequence to this many tokens; None: to the longest of ``expected``, or a little more. Acting and
            training then see a row in one shape, whoever shares its batch: bf16 products of other shapes differ in their
            last digits (with widths by batch, ratios at equal weights were up to 2.5 % from 1 on the small checkpoint).
        expected: instructions that will come, as far as the simulator tells.

    Raises:
        CheckpointError: not the tokenizer that the weights were trained with.
        ConfigError: an expected instruction is longer than ``width``.
    """

    def __init__(
        self,
        header: Header,
        tokenizer: Path,
        cameras: int,
        form: Literal["plain", "listed"],
        width: int | None,
        expected: Sequence[str] = (),
    ) -> None:
        self._tokenizer, self._form, self._width = read_tokenizer(tokenizer), form, width
        self._folder, self._rows = tokenizer, header.qwen.vocab_size
        piece = self._tokenizer.token_to_id(PIECE)
        if piece != header.image_token:
            raise CheckpointError(
                f"{tokenizer} is not the tokenizer of these weights: {PIECE} is {piece}, wanted {header.image_token}"
            )
        if cut := [text for text in _SPECIAL if len(self._encoded(text)) != 1]:
            raise CheckpointError(
                f"{tokenizer} is not the tokenizer of these weights: {', '.join(cut)} must be one token each; take the Eagle "
                "processor's added_tokens.json"
            )
        pictures = "".join(PICTURE.format(number, PIECE * header.siglip.tokens) for number in range(1, cameras + 1))
        self._prefix = self._encoded(BEFORE + pictures)
        self._known: dict[str, list[int]] = {}
        self.places = torch.tensor([place for place, one in enumerate(self._prefix) if one == piece])
        """int64, where pictures' tokens are."""
        wanted = cameras * header.siglip.tokens
        assert len(self.places) == wanted, "a special token was cut in pieces"
        longest = max(expected, key=lambda one: len(self._whole(one)), default=None)
        self._usual = _rounded(len(self.ids(longest))) if longest is not None else 0
        """Tokens of a row that was expected, without a width."""
        self._warned = False

    @property
    def text_from(self) -> int:
        """Place of the first token that differs between instructions."""
        return len(self._prefix)

    def _encoded(self, text: str) -> list[int]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        if beyond := [
            (one, token) for one, token in zip(encoding.ids, encoding.tokens, strict=True) if one >= self._rows
        ]:
            raise CheckpointError(
                f"{self._folder} is not the tokenizer of these weights: it gives {beyond[0][1]!r} the id {beyond[0][0]}, and "
                f"they have embeddings for 0 to {self._rows - 1}"
            )
        return list(encoding.ids)

    def _whole(self, instruction: str) -> list[int]:
        if instruction not in self._known:
            text = instruction if self._form == "plain" else str([instruction])
            self._known[instruction] = self._prefix + self._encoded(AFTER.format(text))
        return self._known[instruction]

    def ids(self, instruction: str) -> list[int]:
        """Return a sequence's ids.

        Raises:
            ConfigError: longer than ``model.pad_to``.
        """
        ids = self._whole(instruction)
        if self._width is not None and len(ids) > self._width:
            raise ConfigError(
                f"model.pad_to: got {self._width}, wanted {len(ids)} or more: so many tokens are pictures and the instruction "
                f"{instruction!r}"
            )
        return ids

    def width(self, instructions: Sequence[str]) -> int:
        """Return the tokens of each row of a batch."""
        return self._width or max(self._usual, *(_rounded(len(self.ids(one))) for one in instructions))

    def batch(self, instructions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return ids ``[N, S]``, padded on the right, and which of them are there (bool)."""
        rows, width = [self.ids(one) for one in instructions], self.width(instructions)
        if self._width is None and width > self._usual > 0 and not self._warned:
            self._warned = True
            log.warning(
                "%r is longer than what the simulator says of its tasks: its batches are wider, and log-probs in them differ "
                "in their last digits between acting and training; set model.pad_to to %d or more",
                max(instructions, key=lambda one: len(self.ids(one))),
                width,
            )
        ids_NS = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])
        length_N = torch.tensor([len(row) for row in rows])
        return ids_NS, torch.arange(width) < length_N[:, None]


def _rounded(tokens: int) -> int:
    return -(-tokens // _ROUND) * _ROUND
