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
# # 4. Is my L3 worth it on this machine?
#
# A disk below host memory keeps more, and takes its time. Whether it pays depends on the GPU (what
# computing costs), the disk, and the trace. So the same question goes to three machines: the H200
# profile, and the two published ones of the mini-HiCache article, where L3 hardly pays (A) and
# where it pays sixfold (B). Put your own profile (`hicache calibrate`, `docs/calibrate.md`) among
# them.

# %%
from pathlib import Path

import pandas as pd

from calibrate.learning import Hit, Truth
from report.plots import capacity, requests
from report.plots.shown import show
from scenario.load import load_scenario
from scenario.profile import load_profile
from sim.compare import compare
from sim.compare_variants import Study, variant_of

# A notebook knows no __file__.
HERE = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
REPOSITORY = next(
    folder for folder in (HERE, *HERE.parents) if (folder / "data/demo.toml").exists()
)
FIGURES = REPOSITORY / "results" / "is_l3_worth_it"
# Each machine with a scenario that names its profile and a trace: edit them, or add yours.
MACHINES = {
    "nvidia-h200": "data/demo.toml",
    "mini-group-a": "scenarios/mini-group-a/throughput.toml",
    "mini-group-b": "scenarios/mini-group-b/throughput.toml",
}
SCENARIOS = {name: str(REPOSITORY / file) for name, file in MACHINES.items()}

# %% [markdown]
# ## Of one request, on an idle machine
#
# What reading a prefix from L3 takes against computing it, by the profile. Where the lines cross is
# the break-even length: shorter prefixes are computed sooner.

# %%
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
for name, file in SCENARIOS.items():
    scenario = load_scenario(file)
    truth = Truth(scenario, load_profile(scenario.machine.profile))
    page = scenario.tiers.page_size_tokens
    lines = {"capacity": [], "computing it": [], "reading it from L3": []}
    for tokens in LENGTHS:
        pages = tokens // page
        computed_ns = truth.prefill_ns(Hit(0, 0, pages, tokens + 1), 0)
        read_ns = truth.copy_ns("s2h", pages) + truth.copy_ns("h2d", pages)
        lines["capacity"].append(tokens)
        lines["computing it"].append(computed_ns / 1e6)
        lines["reading it from L3"].append(read_ns / 1e6)
    table = pd.DataFrame(lines)
    faster = table[table["reading it from L3"] < table["computing it"]]["capacity"]
    print(
        f"{name}: reading is faster", f"from {faster.min():,} tokens on" if len(faster) else "never"
    )
    figure = capacity.lines_over_capacity(table, unit="tokens of the prefix", title=name)
    figure.axes[0].set(xscale="log", xlabel="tokens of the prefix", xlim=(LENGTHS[0], LENGTHS[-1]))
    show(figure, FIGURES, f"break_even_{name}")

# %% [markdown]
# ## Of a whole trace
#
# Under load it is another question: a GPU that computes again what the disk has keeps others from
# theirs, and a disk that many wait for is slow. `cost` learns what pays, `always` restores whatever
# is there; both against no L3 at all.

# %%
for name, file in SCENARIOS.items():
    trace = load_scenario(file).trace.path
    variants = ("no L3:tiers.l3=0", "cost:restore.policy=cost", "always:restore.policy=always")
    found = compare(Study((trace,), tuple(map(variant_of, variants)), scenario=file))
    print(f"--- {name}")
    for contrast in found.contrasts:
        print(contrast.verdict)
    rows = {leg.variant.name: leg.rows for leg in found.legs}
    show(requests.tokens_by_source(rows), FIGURES, f"sources_{name}")
    show(requests.ttft_distribution(rows), FIGURES, f"ttft_{name}")
