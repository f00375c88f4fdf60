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
# # 2. Restore or recompute? Three policies side by side
#
# A prompt's prefix lies in host memory (L2) or on disk (L3). Bringing it back takes the link's and
# the disk's time; computing it again takes the GPU's. Three policies decide:
#
# * `cost` restores when a learned cost model expects a gain for the request in hand,
# * `always` restores whatever is there,
# * `never` computes again whatever has left L1.
#
# All three replay the same trace (`data/agents.jsonl`, agents that come back to their prompts) with
# the scenario of `make demo`: Qwen3-8B on one H200, 60 GiB of L1, twice that of L2, ten times that
# of L3.
#
# As a script (`python notebooks/policy_ab.py`) it prints its table and saves its figures in
# `results/policy_ab`. To open it: `pip install jupytext notebook`, then
# `jupytext --to notebook notebooks/policy_ab.py` and `jupyter notebook`. On the command line:
# `hicache compare data/agents.jsonl --scenario data/demo.toml --policy cost --policy always
# --policy never --plots`.

# %%
from pathlib import Path

import pandas as pd

from report.plots import requests
from report.plots.shown import in_notebook, show
from sim.compare import compare
from sim.compare_variants import Study, variants_of_key

# A notebook knows no __file__.
HERE = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
REPOSITORY = next(
    folder for folder in (HERE, *HERE.parents) if (folder / "data/demo.toml").exists()
)
FIGURES = REPOSITORY / "results" / "policy_ab"
POLICIES = ("cost", "always", "never")

# %%
study = Study(
    (str(REPOSITORY / "data/agents.jsonl"),),
    tuple(variants_of_key("restore.policy", POLICIES)),
    scenario=str(REPOSITORY / "data/demo.toml"),
)
found = compare(study)
summaries = {leg.variant.name: leg.outcome.summary for leg in found.legs}
rows = {leg.variant.name: leg.rows for leg in found.legs}

# %% [markdown]
# ## What came of it
#
# Hit rates are by token over all requests; their definition is in `docs/hit-rates.md`.


# %%
def column(summary: dict) -> dict[str, float]:
    """What one policy's column of the table shows."""
    prompt = summary["prompt_tokens"]
    tokens = {**summary["cached_tokens_total"], "computed": summary["computed_tokens"]}
    times = {
        f"{name}, {percentile} (ms)": summary[key][percentile]
        for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("end to end", "e2e_ms"))
        for percentile in ("p50", "p90", "p99")
    }
    return {
        **{f"{source} (% of prompt tokens)": 100 * n / prompt for source, n in tokens.items()},
        **times,
        "GPU busy (%)": 100 * summary["gpu"]["busy_fraction"],
        "read from L3 (GiB)": summary["bytes"]["s2h"] / 2**30,
        "loaded from L2 (GiB)": summary["bytes"]["h2d"] / 2**30,
        "restores": summary["restores"]["done"],
        "declined by the policy": summary["restores"]["policy_skips"],
    }


table = pd.DataFrame({policy: column(summaries[policy]) for policy in POLICIES})
table = table.map("{:,.1f}".format)
if not in_notebook():
    print(table.to_string())
table

# %% [markdown]
# ## Is it more than chance, and where does it come from?
#
# The runs are paired request by request, and sessions (here: runs of consecutive requests) drawn
# with replacement: an interval that leaves 0 out is a difference. `docs/compare.md` says more.

# %%
for contrast in found.contrasts:
    print(contrast.verdict)
    print(contrast.reason)
    print()

# %% [markdown]
# ## Where prompt tokens came from
#
# The dashed line is the ceiling: what an infinite cache would hit of this trace.

# %%
ceiling = summaries["cost"]["hit_rates"]["all"]["tokens"]["ceiling"]
show(requests.tokens_by_source(rows, ceiling), FIGURES, "tokens_by_source")

# %% [markdown]
# ## Time to first token
#
# Each line is one policy's distribution over all requests. `never` fills the GPU with work it has
# done before, and requests queue. `always` is ahead up to the 80th percentile or so and behind in
# the tail, where long prefixes wait for the disk although the GPU would have computed them sooner.
# `cost` weighs just that, for each request by itself; it does not see that what it computes again
# is taken from those who decode meanwhile. So `always` has the better TPOT and end-to-end times.

# %%
show(requests.ttft_distribution(rows), FIGURES, "ttft")

# %% [markdown]
# ## Over time, under `always`
#
# The caches are empty at first. After some ten minutes L1 begins to drop pages, after twenty L2;
# what is wanted again later than that comes from L3, and the sum stays near the ceiling.

# %%
show(requests.sources_over_time(rows["always"], "always"), FIGURES, "over_time")

# %% [markdown]
# ## Before you believe it
#
# What each run says of itself: warnings, and the values of the machine's profile that nobody
# measured.

# %%
for policy in POLICIES:
    for warning in summaries[policy]["warnings"]:
        print(f"{policy}: {warning}")
print("estimates:", ", ".join(each["key"] for each in summaries["cost"]["estimates"]))
