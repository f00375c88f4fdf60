"""Whose pages they are: what stands behind a page's hash in the name of its file.

    baed64..00fe_Qwen-Qwen3-8B_0_2.bin
    hash         model         rank, ranks

The hash says which tokens, and nothing of who computed them; two models, or two ranks that hold
different heads, must not find each other's pages. This is SGLang's naming, letter by letter. It
knows neither the KV's type nor the order of its bytes: servers that differ in those alone take each
other's pages for their own (sglang#33268). `marks = "format"` adds both, at the price that SGLang
does not find such files. Names are all this module knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hicache.errors import InputError

Marks = Literal["sglang", "format"]
SUFFIX = ".bin"
HASH_DIGITS = 64
LONGEST_NAME_BYTES = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One rank of one server. Ranks count from 0.

    `model` is the name under which it is served. `kind` "mla": all tensor-parallel ranks hold the
    same pages, so their names leave the rank out and rank 0 alone writes. `format`: what "format"
    marks add, such as "bf16-page_first-64".
    """

    model: str
    kind: Literal["mha", "mla"] = "mha"
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1
    marks: Marks = "sglang"
    format: str = ""

    def __post_init__(self) -> None:
        for what in ("tp", "pp", "cp"):
            rank, size = getattr(self, f"{what}_rank"), getattr(self, f"{what}_size")
            if not 0 <= rank < size:
                raise InputError(f"{what}_rank is {rank}: allowed is 0 to {size - 1}")
        if self.marks == "format" and not self.format:
            raise InputError('marks is "format", and format is empty')
        if "\0" in self.model:
            raise InputError("the model's name holds a zero byte")
        longest = HASH_DIGITS + len((self.suffix + SUFFIX).encode())
        if longest > LONGEST_NAME_BYTES:
            raise InputError(
                f"the model's name is too long for a file: {longest} bytes with hash and ranks, "
                f"allowed are {LONGEST_NAME_BYTES}"
            )

    @property
    def suffix(self) -> str:
        """What follows the hash in a name."""
        parts = [self.model.replace("/", "-")]
        if self.kind == "mha":
            parts.append(f"{self.tp_rank}_{self.tp_size}")
        if self.pp_size > 1:  # the other way round than the tensor-parallel pair, as SGLang has it
            parts.append(f"{self.pp_size}_{self.pp_rank}")
        if self.cp_size > 1:
            parts.append(f"cp{self.cp_rank}_{self.cp_size}")
        if self.marks == "format":
            parts.append(self.format)
        return "_" + "_".join(parts)

    @property
    def writes(self) -> bool:
        """Whether this rank writes to a store: pages that all ranks hold alike are written once."""
        return self.kind == "mha" or self.tp_rank == 0

    def file_name(self, name: str) -> str:
        """The file of a page."""
        return f"{name}{self.suffix}{SUFFIX}"

    def owns(self, file_name: str) -> bool:
        """Whether a file in a shared folder is one of this rank's, and not of a model whose name
        only ends alike: a hash has no underscore.
        """
        tail = self.suffix + SUFFIX
        return file_name.endswith(tail) and "_" not in file_name[: -len(tail)]
