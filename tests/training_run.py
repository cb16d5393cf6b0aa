"""One small but real training run in its own process, for the tests that kill, resume and compare runs.

python -m tests.training_run OUTPUT_DIR '{"kind": "xla", "steps": 12, ...}'  prints one line of JSON at the end.
"""

import os
import resource
import signal
import sys
import time
from pathlib import Path

from tests import colab, driver
from tests.killing import kill_at
from tests.models import tiny

DEFAULTS = driver.DEFAULTS | {
    "model": "reservoir",  # or "llama"
    "dropout": 0.1,
    "checkpointing": False,
    "steps": 12,
    "accumulation": 2,
    "logging_steps": 1,
    "save_steps": 4,
    "hold": "",  # while this file is there, the run stands still at a moment, unless it is asked to stop
    "hold_when": "step",  # after the fifth; or "evaluation" or "saving" of step 8
    "blocks": 40,
    "width": 64,
    "learning_rate": 3e-3,
    "batch_size": 8,
    "kill_write": None,  # kill -9 at this file operation inside a checkpoint write
    "signals": [],  # (step, name of a signal that comes at its end)
    "max_hours": 0.0,
    "nan_step": None,  # the data of this step make the loss infinite
    "nan_gradient_step": None,
    "scale": 0.0,  # of a real GradScaler on the CPU, as for fp16 on a GPU
    "eval_strategy": "steps",
    "keep_in": "",  # the run has a RunFolder with this second place
    "drive": "",  # folder of the Google Drive of a Colab runtime (tests/colab.py), of which this is a process
    "report_to": "none",
    "then_evaluate": False,  # also after a stop
    "elsewhere": "",  # the working directory once the trainer is made
    "exhaust_above": None,  # a step with more examples than this asks the device for a petabyte too
    "file_limit": None,  # bytes a file may have, from step 3 on: a disk that fills up
}


def build_model(options):
    import torch

    if options["model"] == "llama":
        tokens = {"vocab_size": 200, **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)}
        return tiny("Llama", hidden_size=options["width"], attention_dropout=options["dropout"], **tokens)
    from helpers.reservoir.counts import Counts
    from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM

    width = options["width"]
    sizes = {"vocab_size": 200, "units": width, "unit_blocks": 4, "embedding_size": width // 2, "readout_size": 32}
    config = ReservoirConfig(**sizes, dropout=options["dropout"], window=8, eos_token_id=0)
    codes = torch.randn(200, 8, generator=torch.Generator().manual_seed(1))
    model = ReservoirForCausalLM.initialise(config, codes, seed=1)
    model.counts = Counts.fit(torch.arange(200).numpy(), 200, 0)

    def uniform(windows_BTW):  # no counts, which are looked up on the host
        shape, device = windows_BTW.shape[:-1], windows_BTW.device
        return torch.full((*shape, 200), 1 / 200, device=device), torch.zeros(*shape, 4, device=device)

    model.look_up = uniform
    return model


def main(output_dir: str, options: dict) -> dict:
    if options["drive"]:
        colab.pretend(Path(options["drive"]))
    machine = driver.detect(options)
    import torch
    import transformers

    from helpers.machine import ranks, xla
    from helpers.parameters import Parameters
    from helpers.run.run_folder import RunFolder
    from helpers.train.arguments import training_arguments
    from helpers.train.trainer import TrainerMixin
    from tests.workloads import plan_by_hand

    run = None
    if options["keep_in"]:
        run = RunFolder.claim("training_run", Parameters(output_dir=output_dir, keep_in=options["keep_in"]))
        run.note(data="blocks")
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(1, 200, (options["blocks"] + 16, 16), generator=generator)
    blocks[:, 1::2] = blocks[:, :1]  # something to learn
    examples = [{"input_ids": block, "labels": block} for block in blocks]
    if options["model"] == "llama":
        examples = [{**example, "attention_mask": torch.ones(16, dtype=torch.long)} for example in examples]

    settings = {name: options[name] for name in ("batch_size", "accumulation", "steps", "learning_rate")}
    planned = plan_by_hand(machine, **settings, length=16, gradient_checkpointing=options["checkpointing"])
    sharding = []

    def stand_still() -> None:
        if options["hold"] and ranks.is_main():
            Path(output_dir, "held").touch()
            while Path(options["hold"]).exists() and not trainer.stops.reason:
                time.sleep(0.05)

    def opened(event: str, arguments: tuple) -> None:
        if event == "open" and str(arguments[0]).endswith("checkpoint-8/trainer_state.json") and arguments[1] == "w":
            stand_still()

    def exhaust(loss, inputs) -> None:
        if options["exhaust_above"] is not None and len(inputs["input_ids"]) > options["exhaust_above"]:
            hog = loss + torch.ones(2**47, device=loss.device)  # alive, so that it must be allocated
            xla.sync()  # XLA allocates when the graph runs; a CPU has refused before
            del hog

    class Interrupt(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if options["hold_when"] == "step" and state.global_step == 5:
                stand_still()
            if options["file_limit"] and state.global_step == 2:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (options["file_limit"], resource.RLIM_INFINITY))

        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            if options["nan_gradient_step"] == state.global_step + 1:
                next(p for p in model.parameters() if p.grad is not None).grad.fill_(float("nan"))

        def on_prediction_step(self, args, state, control, **kwargs):
            if options["hold_when"] == "evaluation" and state.global_step == 8:
                stand_still()

        def on_step_end(self, args, state, control, **kwargs):
            for step, name in options["signals"]:
                if step == state.global_step:
                    os.kill(os.getpid(), getattr(signal, name))

    class Trainer(TrainerMixin, transformers.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            if machine.kind == "xla" and not sharding:
                import torch_xla

                sharding.extend(torch_xla._XLAC._get_xla_sharding_spec(inputs[key]) for key in sorted(inputs))
            if options["nan_step"] == self.state.global_step + 1:
                with torch.no_grad():
                    next(self.model.parameters()).mul_(float("nan"))
            loss = super().training_step(model, inputs, num_items_in_batch)
            exhaust(loss, inputs)
            return loss

    arguments = training_arguments(
        planned,
        machine,
        output_dir,
        seed=5,
        eval_steps=options["save_steps"],
        **{name: options[name] for name in ("logging_steps", "save_steps", "report_to", "eval_strategy")},
        **({"optim": "adamw_torch_fused", "max_grad_norm": 0.0} if options["scale"] else {}),
    )
    model = build_model(options)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=examples[: options["blocks"]],
        eval_dataset=examples[options["blocks"] :],
        plan=planned,
        runtime=machine,
        max_hours=options["max_hours"],
        callbacks=[Interrupt()],
    )
    watched = driver.watch(trainer, options)
    if options["hold_when"] == "saving":
        sys.addaudithook(opened)
    if options["kill_write"]:
        kill_at(options["kill_write"], within="checkpoint-8")
    if options["scale"]:
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=options["scale"])
    if options["elsewhere"]:
        os.chdir(options["elsewhere"])
    try:
        trainer.train(resume_from_checkpoint=True)
    finally:
        if options["then_evaluate"]:
            print("EVALUATED", trainer.evaluate()["eval_loss"])
    if run:
        run.results(machine, **trainer.results())
    return {
        "sharding": sharding,
        "late": watched.late,
        **trainer.results(),
        "losses": driver.logged(trainer, "loss"),
        "eval_losses": driver.logged(trainer, "eval_loss"),
        "log_history": trainer.state.log_history,
        "best_step": trainer.state.best_global_step,
    }


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
    driver.serve(main, DEFAULTS)
