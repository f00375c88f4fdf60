# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Restore or recompute? Three policies side by side
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
# `jupytext --to notebook notebooks/policy_ab.py` and `jupyter notebook`.

# %%
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

# A notebook knows no __file__; a script needs no display.
SCRIPT = "__file__" in globals()
if SCRIPT:
    matplotlib.use("Agg")

import matplotlib.pyplot as plt

from scenario.load import load_scenario
from sim.replay import replay

HERE = Path(__file__).resolve().parent if SCRIPT else Path.cwd()
REPOSITORY = next(
    folder for folder in (HERE, *HERE.parents) if (folder / "data/demo.toml").exists()
)
plt.style.use(REPOSITORY / "docs" / "print.mplstyle")

POLICIES = ("cost", "always", "never")
SOURCES = ("device", "host", "storage", "computed")
LABELS = ("L1 device", "L2 host", "L3 storage", "computed")
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#DDDDDD")
HATCHES = ("", "///", "...", "")


def show(figure: plt.Figure, name: str) -> None:
    """Show a figure here, or save it when this is a script."""
    if not SCRIPT:
        plt.show()
        return
    file = REPOSITORY / "results" / "policy_ab" / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    print(f"figure: {file}")


# %%
outcomes = {
    policy: replay(load_scenario(REPOSITORY / "data/demo.toml", {"restore.policy": policy}))
    for policy in POLICIES
}
summaries = {policy: outcome.summary for policy, outcome in outcomes.items()}
requests = {policy: pd.DataFrame(dict(outcome.columns)) for policy, outcome in outcomes.items()}

# %% [markdown]
# ## What came of it
#
# Hit rates are by token over all requests; their definition is in `docs/hit-rates.md`.


# %%
def column(summary: dict) -> dict[str, float]:
    """What one policy's column of the table shows."""
    prompt = summary["prompt_tokens"]
    shares = {
        label: 100 * summary["cached_tokens_total"].get(source, summary["computed_tokens"]) / prompt
        for source, label in zip(SOURCES, LABELS, strict=True)
    }
    times = {
        f"{name}, {percentile} (ms)": summary[key][percentile]
        for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("end to end", "e2e_ms"))
        for percentile in ("p50", "p90", "p99")
    }
    return {
        **{f"{label} (% of prompt tokens)": share for label, share in shares.items()},
        **times,
        "GPU busy (%)": 100 * summary["gpu"]["busy_fraction"],
        "read from L3 (GiB)": summary["bytes"]["s2h"] / 2**30,
        "loaded from L2 (GiB)": summary["bytes"]["h2d"] / 2**30,
        "restores": summary["restores"]["done"],
        "declined by the policy": summary["restores"]["policy_skips"],
    }


table = pd.DataFrame({policy: column(summaries[policy]) for policy in POLICIES})
table = table.map("{:,.1f}".format)
if SCRIPT:
    print(table.to_string())
table

# %% [markdown]
# ## Where prompt tokens came from
#
# The dashed line is the ceiling: what an infinite cache would hit of this trace.

# %%
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
left = np.zeros(len(POLICIES))
for source, label, colour, hatch in zip(SOURCES, LABELS, COLOURS, HATCHES, strict=True):
    shares = np.array([requests[policy][f"{source}_tokens"].sum() for policy in POLICIES])
    shares = 100 * shares / summaries["cost"]["prompt_tokens"]
    axes.barh(
        POLICIES, shares, left=left, label=label, color=colour, hatch=hatch, edgecolor="white"
    )
    left += shares
ceiling = 100 * summaries["cost"]["hit_rates"]["all"]["tokens"]["ceiling"]
axes.axvline(ceiling, color="black", linestyle="--", linewidth=1)
axes.set(
    xlabel="% of prompt tokens",
    xlim=(0, 100),
    title=f"Prompt tokens by source (dashed: the ceiling, {ceiling:.1f} %)",
)
axes.invert_yaxis()
axes.grid(axis="y", visible=False)
axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.18))
show(figure, "tokens_by_source")

# %% [markdown]
# ## Time to first token
#
# Each line is one policy's distribution over all requests. `never` fills the GPU with work it has
# done before, and requests queue. `always` is ahead up to the 80th percentile or so and behind in
# the tail, where long prefixes wait for the disk although the GPU would have computed them sooner.
# `cost` weighs just that, for each request by itself; it does not see that what it computes again
# is taken from those who decode meanwhile. So `always` has the better TPOT and end-to-end times.

# %%
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for policy in POLICIES:
    ttft_ms = np.sort(requests[policy]["ttft_ns"].to_numpy(dtype=float)) / 1e6
    axes.plot(ttft_ms, np.arange(1, len(ttft_ms) + 1) / len(ttft_ms), label=policy)
axes.set(
    xscale="log", xlabel="TTFT (ms)", ylabel="share of requests", ylim=(0, 1),
    title="Time to first token",
)  # fmt: skip
axes.legend(loc="lower right")
show(figure, "ttft")

# %% [markdown]
# ## Over time, under `always`
#
# The caches are empty at first. After some ten minutes L1 begins to drop pages, after twenty L2;
# what is wanted again later than that comes from L3, and the sum stays near the ceiling.

# %%
rows = requests["always"].assign(minute=lambda rows: rows["arrival_ns"] // 300_000_000_000 * 5)
columns = [f"{source}_tokens" for source in SOURCES]
by_time = rows.groupby("minute")[columns].sum()
shares = 100 * by_time.div(by_time.sum(axis=1), axis=0)

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
left = np.zeros(len(shares))
for name, label, colour, hatch in zip(columns, LABELS, COLOURS, HATCHES, strict=True):
    heights = shares[name].to_numpy()
    axes.bar(
        shares.index, heights, 5, bottom=left, align="edge", label=label,
        color=colour, hatch=hatch, edgecolor="white", linewidth=0.4,
    )  # fmt: skip
    left += heights
axes.set(
    xlabel="minutes since the first request", ylabel="% of prompt tokens", ylim=(0, 100),
    title="Prompt tokens by source over time, always",
)  # fmt: skip
axes.grid(axis="x", visible=False)
axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.18))
show(figure, "over_time")

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
