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
# # 1. Replay a trace
#
# What would a cache of three tiers do for this traffic? The trace is `data/agents.jsonl`, agents
# that come back to their prompts; the machine one H200 with Qwen3-8B, 60 GiB of L1, twice that of
# host memory, ten times that of disk. For your own, put its file in `TRACE`; any format of
# `docs/traces.md` will do.

# %%
from pathlib import Path

import pandas as pd

from report.plots import devices, requests
from report.plots.shown import show
from scenario.load import load_scenario
from sim.compare import table_of
from sim.replay import replay

# A notebook knows no __file__.
HERE = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
REPOSITORY = next(
    folder for folder in (HERE, *HERE.parents) if (folder / "data/demo.toml").exists()
)
FIGURES = REPOSITORY / "results" / "replay_a_trace"
TRACE = REPOSITORY / "data" / "agents.jsonl"

# %% [markdown]
# ## What is in it
#
# An infinite cache would hit the ceiling; no policy and no memory gets more.

# %%
scenario = load_scenario(REPOSITORY / "data/demo.toml", {"trace.path": str(TRACE)})
outcome = replay(scenario, timeline=True)
summary, rows = outcome.summary, table_of(outcome)
rates = summary["hit_rates"]["all"]["tokens"]
trace = summary["trace"]
print(
    f"{trace['requests']:,} requests in {trace['duration_s'] / 60:.0f} minutes, {trace['format']}"
)
print(f"{summary['prompt_tokens']:,} prompt tokens, of which {rates['ceiling']:.1%} can be hit")

# %% [markdown]
# ## What came of it

# %%
pd.DataFrame(
    {
        "tokens": {**summary["cached_tokens_total"], "computed": summary["computed_tokens"]},
        "evicted": summary["evicted_tokens_total"],
    }
)

# %%
times = {name: summary[f"{name}_ms"] for name in ("ttft", "queue", "tpot", "e2e")}
pd.DataFrame(times).T.round(1)

# %% [markdown]
# The caches are empty at first. When L1 is full, what is wanted again comes from host memory, later
# from the disk; the policy `cost` fetches it only where it expects that to be faster than
# computing.

# %%
show(requests.sources_over_time(rows), FIGURES, "sources_over_time")
show(requests.restores_over_time(rows), FIGURES, "restores_over_time")

# %% [markdown]
# ## Who waited, and for what

# %%
show(requests.ttft_by_prompt({"cost": rows}), FIGURES, "ttft_by_prompt")
show(requests.request_timeline(rows), FIGURES, "slowest")

# %%
text = outcome.extras["timeline.json"]
show(devices.utilisation(devices.operations_of(text)), FIGURES, "busy")
show(devices.waiting_over_time(devices.states_of(text)), FIGURES, "waiting")

# %% [markdown]
# ## Before you believe it
#
# What the run says of itself, and the inputs that nobody measured.

# %%
for warning in summary["warnings"]:
    print(f"warning: {warning}")
print("estimates:", ", ".join(each["key"] for each in summary["estimates"]))
