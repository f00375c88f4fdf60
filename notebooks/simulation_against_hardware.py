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
# # 5. Simulation against hardware
#
# A run on one H200 (Qwen3-8B, random weights) left its record: every operation, when it began and
# ended. The record repeats each of its decisions here, without a GPU. Beside it the same scenario
# is simulated with the shipped profile. How far is the prediction off, and where?

# %%
from pathlib import Path

import pandas as pd

from calibrate.learning import learn
from calibrate.validate.page import draw_model, draw_parts, draw_requests
from calibrate.validate.runs import load_run
from calibrate.validate.table import headline
from calibrate.validate.validation import as_the_machine_did, validate
from report.plots import belief, requests
from report.plots.shown import show
from report.plots.style import styled
from scenario.load import load_scenario

# A notebook knows no __file__.
HERE = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
REPOSITORY = next(
    folder for folder in (HERE, *HERE.parents) if (folder / "data/demo.toml").exists()
)
FIGURES = REPOSITORY / "results" / "simulation_against_hardware"
# Put the folder of your own `hicache run` here.
RUN = REPOSITORY / "benchmarks/hw/results/h200-2026-11-29/agents-8b"

# %% [markdown]
# ## The comparison
#
# Errors are signed: a negative one says that the simulation was too fast.

# %%
hardware = load_run(RUN, "hardware")
scenario = as_the_machine_did(load_scenario(RUN / "scenario.toml"))
found = validate([hardware], scenario, "agents on one H200", explains="nothing")
print(headline(found))
table = pd.DataFrame(
    {
        name: {"hardware": each.mean, "simulated": each.simulated, "error (%)": each.error_percent}
        for name, each in found.figures.items()
    }
)
table.T.round(2)

# %% [markdown]
# Tokens by source: is the schedule right, request by request?

# %%
pd.DataFrame(
    {
        name: {"hardware": each.hardware[0], "simulated": each.simulated, "points": each.points}
        for name, each in found.shares.items()
    }
).T.round(3)

# %% [markdown]
# ## Time to first token, and each request

# %%
rows = {run.name: pd.DataFrame(run.columns) for run in (hardware, found.simulated)}
show(requests.ttft_distribution(rows), FIGURES, "ttft")
with styled():
    show(draw_requests(found), FIGURES, "requests")

# %% [markdown]
# ## Where the time goes, and how well single operations are predicted

# %%
with styled():
    show(draw_parts(found), FIGURES, "parts")
    show(draw_model(found), FIGURES, "operations")

# %% [markdown]
# ## What the cost model learned in the run
#
# Its belief over the truth, that is over what the profile says; and what its choices lost by it.

# %%
learned = learn(scenario, "agents on one H200", hardware)
show(
    belief.belief_against_truth(learned.table, learned.name, learned.settled_at), FIGURES, "belief"
)
summary = learned.summary()
print(f"{summary['right_choices']} of {summary['decisions']} choices were right")

# %% [markdown]
# `hicache validate` makes a run and this comparison in one go on your machine
# (`docs/validation.md`).
