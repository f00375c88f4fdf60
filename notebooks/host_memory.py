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
# # 3. How much host memory?
#
# First the hits, of every size at once: one pass over the trace gives the LRU curve and the offline
# optimum, which no policy can beat. Then the times, which a curve does not know, from a replay of
# each of a few sizes.

# %%
from pathlib import Path

import pandas as pd

from report.plots import capacity
from report.plots.shown import show
from scenario.geometry import load_geometry
from scenario.load import load_scenario
from sim.curve_study import CurveQuestions, study_curve
from sim.curve_trace import CurveRules
from sim.replay import replay
from traces.reader import open_trace

# A notebook knows no __file__.
HERE = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
REPOSITORY = next(
    folder for folder in (HERE, *HERE.parents) if (folder / "data/demo.toml").exists()
)
FIGURES = REPOSITORY / "results" / "host_memory"
TRACE = str(REPOSITORY / "data" / "agents.jsonl")
PAGE_TOKENS, MODEL = 64, "Qwen3-8B"
L1_GIB = 60
L2_GIB = (0, 60, 120, 240)

# %% [markdown]
# ## All sizes in one pass

# %%
page_bytes = load_geometry(MODEL).kv_bytes_per_token * PAGE_TOKENS
pages = [(L1_GIB << 30) // page_bytes]
rules = CurveRules(PAGE_TOKENS, pages="full", hit_cap="last_token_computed", outputs="cached")
study = study_curve(open_trace(TRACE), rules, CurveQuestions((), pages, optimum_curve=True))
document = study.document | {"page_bytes": page_bytes}
(here,) = document["optimum"]
rates = {name: here[name]["hit_rate_pages"] for name in ("lru", "may_bypass")}
print(
    f"at {L1_GIB} GiB LRU hits {rates['lru']:.1%} of the pages, the best that knew the future "
    f"{rates['may_bypass']:.1%}"
)

# %% [markdown]
# ## A replay of each size
#
# L2 holds copies of what L1 holds, so that what both hit is what one tier of the larger's size
# hits: the points lie near the curve. They may lie off it, since requests that run take room from
# the cache, whole leaves leave at once, and a timed run overlaps requests.

# %%
found = []
for size in L2_GIB:
    options = {
        "trace.path": TRACE, "tiers.l1": f"{L1_GIB}GiB", "tiers.l2": f"{size}GiB" if size else "0",
        "tiers.l3": "0", "restore.policy": "always",
    }  # fmt: skip
    summary = replay(load_scenario(REPOSITORY / "data/demo.toml", options)).summary
    rates = summary["hit_rates"]["all"]
    found.append(
        {
            "L2 (GiB)": size,
            "hit rate (% of pages)": 100 * rates["pages"]["total"],
            "TTFT p50 (ms)": summary["ttft_ms"]["p50"],
            "TTFT p99 (ms)": summary["ttft_ms"]["p99"],
            "GPU busy (%)": 100 * summary["gpu"]["busy_fraction"],
        }
    )
sizes = pd.DataFrame(found)
sizes.round(1)

# %%
points = pd.DataFrame(
    {
        "series": "replayed: L1 and L2",
        "kind": "points",
        "capacity": [max(L1_GIB, size) for size in L2_GIB],
        "hit_percent": sizes["hit rate (% of pages)"],
    }
)
show(capacity.draw_curve(document, points), FIGURES, "hits")

# %% [markdown]
# ## What it does to those who wait
#
# Look for the size from which on the lines are flat: more memory than that is for others. What a
# GiB costs you know.

# %%
times = sizes[["L2 (GiB)", "TTFT p50 (ms)", "TTFT p99 (ms)"]].rename(
    columns={"L2 (GiB)": "capacity"}
)
show(capacity.lines_over_capacity(times, unit="GiB of L2"), FIGURES, "ttft")
