# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown] tags=["gpu"]
# # What this GPU makes of the notebooks
#
# You have a GPU (a T4 of Colab, Kaggle's two, an L4, an A100, ...), and the documentation has no figures of it: **Run all** makes them.
# Each of the five notebooks trains for 30 steps at its default size, one after the other, each in a kernel of its own. One run is
# killed in the middle and goes on, and must end with the weights of an undisturbed one. At the end there are one JSON file and the
# rows of a table.
#
# Nothing is kept but the figures, and nothing is sent anywhere. **Runtime**: a GPU (Colab: *Runtime > Change runtime type*). On a CPU the
# same code runs with small samples, and the figures say nothing.

# %% [markdown] tags=["tpu"]
# # What this TPU makes of the notebooks
#
# You have a TPU (Colab's v5e-1, Kaggle's v5e-8, ...), and the documentation has no figures of it: **Run all** makes them. Each of the five
# notebooks trains for 30 steps at its default size, one after the other, each in a kernel of its own; the first steps are compiled,
# which takes minutes. One run is killed in the middle and goes on, and must end with the weights of an undisturbed one. At the end there
# are one JSON file and the rows of a table that belong into `docs/tpu.md`.
#
# Nothing is kept but the figures, and nothing is sent anywhere. **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*). Without one
# the same code runs on the CPU with small samples, and the figures say nothing.

# %% [markdown]
# ## Your settings
#
# The report lists the parts that there was no time for. Run the cell below again, or all cells, and the missing parts are added to the same file.
# The models come from the hub; `models` is for a machine that cannot reach it.

# %% tags=["parameters"]
# @title Parameters
# @markdown Minutes for all parts together.
minutes: float = 30.0  # @param {type:"number"}
# @markdown Parts with commas between, such as `legal_cot_sft, resume`; empty runs all.
parts: str = ""  # @param {type:"string"}
# @markdown File of the figures.
output: str = "runtime_report.json"  # @param {type:"string"}
# @markdown Folder with the models, by the last part of their ids, where no hub can be reached.
models: str = ""  # @param {type:"string"}

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets peft trl sentence-transformers faiss-cpu bm25s pydantic filelock wandb matplotlib papermill charset-normalizer scipy
# notebooks: graphmer_se hardware_tuning legal_cot_sft lejepa_training tinystories_reservoir
# files: benchmarks/gpu.py benchmarks/report.py benchmarks/stock.py docs/evidence/gpu.py

# %%
import json
import subprocess
import sys
from pathlib import Path

import helpers
from helpers.machine import hardware

attached = hardware.attached_gpu()  # gpu only
attached = hardware.attached_tpu()  # tpu only
device = "cpu"
if attached:
    device = "cuda"  # gpu only
    device = "tpu"  # tpu only
code = Path(helpers.__file__).parents[1]
command = [sys.executable, "-u", str(code / "benchmarks/gpu.py"), "--device", device, "--minutes", str(minutes)]
command += ["--output", str(Path(output).absolute()), "--missing"]
if device == "cpu":
    print("no accelerator is attached: samples on the CPU, which measure nothing")
    command += ["--small"]
if parts:
    command += ["--only", *(part.strip() for part in parts.split(","))]
if models:
    command += ["--models", models]
print(" ".join(command))

# %% [markdown]
# ## Run
#
# A line of JSON for each part as it ends. A part that fails says why, and the others go on.

# %%
with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
    for line in run.stdout:
        print(line, end="")
report = json.loads(Path(output).read_text(encoding="utf-8"))
assert report["parts"], "nothing ran: see the lines above"

# %% [markdown]
# ## The rows
#
# MFU is the share of the datasheet's peak that was used.

# %%
import importlib.util

from IPython.display import Markdown, display

spec = importlib.util.spec_from_file_location("evidence", code / "docs/evidence/gpu.py")
evidence = importlib.util.module_from_spec(spec)
spec.loader.exec_module(evidence)
rows = evidence.device(report)
display(Markdown(rows))

# %% [markdown]
# The same text to copy, and where the file is:

# %%
print(rows)
print(Path(output).absolute())

# %% [markdown]
# ## Next steps
#
# - **Share it**: put the file into `docs/results` under the name `gpu_<device>.json`.
# - **Only some parts**: `parts="legal_cot_sft, resume"`, in a new `output`.
# - **Two cards**: `parts="legal_cot_sft two cards"` trains one model on both.
