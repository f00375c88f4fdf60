"""The arguments of an SGLang server that are not HiCache's: model, memory, pages, batches, ranks.

What changes times or hits and is not simulated is said (`_NOT_SIMULATED`).
"""

from __future__ import annotations

from hicache.errors import InputError
from scenario.sglang_flags import ORIGIN
from scenario.sglang_reader import ArgumentReader

_KV_DTYPES = {
    "auto": "auto", "bf16": "bf16", "bfloat16": "bf16", "fp8_e5m2": "fp8", "fp8_e4m3": "fp8",
}  # fmt: skip
# Sizes of a page that an attention back-end can use; any other becomes the last.
_PAGES_OF = {
    "flashmla": (64,), "trtllm_mla": (32, 64), "tokenspeed_mla": (32, 64), "cutedsl_mla": (32, 64),
    "trtllm_mha": (16, 32, 128, 64), "hpc_ops": (64,), "cutlass_mla": (128,),
}  # fmt: skip
# What changes a server's times or hits and is not simulated.
_NOT_SIMULATED = {
    "--speculative-algorithm": "speculative decoding",
    "--enable-lmcache": "LMCache in the place of HiCache",
    "--enable-flexkv": "FlexKV in the place of HiCache",
    "--enable-hisparse": "a sparse cache",
    "--enable-dp-attention": "attention on replicas of their own",
    "--attn-dp-size": "attention on replicas of their own",
    "--cpu-offload-gb": "weights in host memory",
    "--pp-size": "pipeline parallelism",
    "--disaggregation-mode": "prefill and decode on servers of their own",
    "--dcp-size": "context parallelism of decode",
    "--attn-cp-size": "context parallelism of prefill",
    "--hicache-host-memory-fraction": "a ratio cut down to the machine's memory",
    "--schedule-conservativeness": "another scheduler.output_reserve_fraction",
    "--enable-priority-scheduling": "priorities",
    "--radix-cache-backend": "another prefix cache",
    "--enable-unified-cache-external-linker": "L3 without an L2",
}


class ServerReader(ArgumentReader):
    """Turns them into options."""

    def read_model(self) -> None:
        """Whose cache it is, and the GPU memory for it."""
        model = self.text("--model-path")
        if model is not None:
            self.options["model.name"] = model
        dtype = self.text("--kv-cache-dtype")
        if dtype is not None:
            if dtype not in _KV_DTYPES:
                raise InputError(
                    f"{ORIGIN}: --kv-cache-dtype {dtype} is not in this version: "
                    f"{', '.join(_KV_DTYPES)} are"
                )
            self.options["model.kv_dtype"] = _KV_DTYPES[dtype]
        fraction = self.number("--mem-fraction-static")
        if fraction is not None:
            self.options["machine.memory_fraction"] = float(fraction)
        tokens = self.whole("--max-total-tokens")
        if tokens:
            self.options["tiers.l1"] = f"{tokens}tokens"

    def read_scheduler(self) -> None:
        """How requests are batched, and what of it is not simulated."""
        chunk = self.whole("--chunked-prefill-size", least=-1)
        if chunk is not None:  # -1: prompts are computed whole
            self.options["scheduler.chunk_tokens"] = chunk if chunk > 0 else 1 << 30
        running = self.whole("--max-running-requests")
        if running:
            self.options["scheduler.max_running_requests"] = running
        if self.is_set("--enable-mixed-chunk"):
            self.options["scheduler.mixed_chunk"] = True
        order = self.text("--schedule-policy")
        if order not in (None, "fcfs"):
            self.notes.append(f"--schedule-policy {order}: requests are served as they come (fcfs)")
        for name, what in _NOT_SIMULATED.items():
            if name in self.given and self.given[name] not in (["1"], ["1.0"], ["null"]):
                self.used.add(name)
                shown = " ".join((name, *self.given[name]))
                self.notes.append(f"{shown}: {what}: not simulated")

    def read_page_size(self) -> None:
        """Tokens of a page, as far as the attention back-end can use them."""
        page = self.whole("--page-size")
        size = page or 1
        for name in (
            "--attention-backend", "--decode-attention-backend", "--prefill-attention-backend",
        ):  # fmt: skip
            sizes = _PAGES_OF.get(self.given.get(name, [""])[0], ())
            if sizes and size not in sizes:
                self.notes.append(
                    f"{name} {self.given[name][0]}: its pages have {_either(sizes)} tokens: "
                    f"page size {size} becomes {sizes[-1]}, as in SGLang"
                )
                size = sizes[-1]
        if page is None:
            self.notes.append(f"no --page-size: SGLang's pages are then of {size} tokens")
        self.options["tiers.page_size_tokens"] = size

    def read_ranks(self) -> int:
        """GPUs that hold a part of the model each."""
        ranks = self.whole("--tp-size") or 1
        replicas = self.whole("--dp-size") or 1
        if ranks > 1:
            self.options["ranks.tp"] = ranks
        if replicas > 1:
            self.put("instances", replicas, f"--dp-size {replicas}")
            method = self.text("--load-balance-method")
            if method == "total_requests":
                self.put("router", "least_loaded", "")
            elif method not in (None, "auto", "round_robin"):
                self.notes.append(
                    f"--load-balance-method {method}: not simulated: replicas are served by turns"
                )
        return ranks


def _either(sizes: tuple[int, ...]) -> str:
    shown = [str(size) for size in sorted(sizes)]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
