# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. Write a policy
#
# A policy says of each request with a hit below L1 how much of it to restore. It sees the hits and
# what the engine's cost model believes, no more. This one restores whatever host memory has, and
# from disk only what is short. `docs/write-a-policy.md` tells all there is to it.

# %%
from pathlib import Path

import pandas as pd

from hicache.restore_policy import Choice
from report.plots import requests
from report.plots.shown import show
from sim.compare import compare
from sim.compare_variants import Study, variants_of_key

# A notebook knows no __file__.
HERE = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
REPOSITORY = next(
    folder for folder in (HERE, *HERE.parents) if (folder / "data/demo.toml").exists()
)
FIGURES = REPOSITORY / "results" / "write_a_policy"


# %%
class ShortReads:
    """From L2 whatever is there; from L3 only what is short, so that nobody waits long for it."""

    LONGEST_TOKENS = 8192

    def __init__(self, page_size_tokens, belief):
        self.page = page_size_tokens

    def __call__(self, hits):
        above = max(hits.device, hits.host)
        read_tokens = (hits.storage - hits.device) * self.page
        if hits.storage > above and read_tokens <= self.LONGEST_TOKENS:
            return Choice(hits.storage, "short_read")
        if hits.host > hits.device:
            return Choice(hits.host, "host")
        return Choice(hits.device, "long_read")


# %% [markdown]
# ## Beside the built-in ones
#
# `__main__` is this notebook; for a class in a file say `my_policies:ShortReads`.

# %%
policies = ("cost", "__main__:ShortReads")
study = Study(
    (str(REPOSITORY / "data/agents.jsonl"),),
    tuple(variants_of_key("restore.policy", policies)),
    scenario=str(REPOSITORY / "data/demo.toml"),
)
found = compare(study)
for contrast in found.contrasts:
    print(contrast.verdict)
    print(contrast.reason)
    print()

# %%
rows = {leg.variant.name: leg.rows for leg in found.legs}
show(requests.tokens_by_source(rows), FIGURES, "sources")
show(requests.ttft_distribution(rows), FIGURES, "ttft")
show(requests.restores_over_time(rows["ShortReads"], "ShortReads"), FIGURES, "restores")

# %% [markdown]
# ## What did it decide, and did it pay?

# %%
rows["ShortReads"].groupby("reason")["prompt_tokens"].agg(["count", "sum"])

# %%
document = found.document()["comparisons"][0]
table = pd.DataFrame(document["by_prompt"])
show(requests.changes_by_prompt(table, "cost", "ShortReads"), FIGURES, "changes")
table[["from_tokens", "requests", "gained", "lost", "hit_change_tokens", "ttft_change_s"]]
