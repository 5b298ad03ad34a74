"""Four updates of TRL, alone or under `accelerate launch`, and the differences."""

import argparse
from pathlib import Path

from ..training.task import addition
from . import differences, joined, keep, quiet, requires_trl, start, tiny_trainer


def main():
    requires_trl()
    quiet()
    from accelerate import PartialState
    from accelerate.utils import gather_object

    parser = argparse.ArgumentParser(prog="rlnb.trainers", description=__doc__)
    parser.add_argument("--kind", choices=("rloo", "grpo"), default="rloo")
    parser.add_argument("--folder", required=True, help="of the model; made if missing")
    parser.add_argument("--steps", type=int, default=4)
    chosen = parser.parse_args()
    with PartialState(cpu=True).main_process_first():
        if not Path(chosen.folder, "config.json").exists():
            start(chosen.folder)
    task = addition()
    index = task.train[:64]
    asked = task.prompts[index], task.answers[index]
    trainer = tiny_trainer(
        chosen.kind, chosen.folder, *asked, max_steps=chosen.steps, num_iterations=2
    )
    with keep(trainer) as steps:
        trainer.train()
    everyone = gather_object(steps)  # rank 0's steps, then rank 1's, ...
    if trainer.accelerator.is_main_process:
        found = [joined(everyone[i :: len(steps)]) for i in range(len(steps))]
        print(f"{trainer.accelerator.num_processes} processes")
        for name, gap in differences(trainer, found).items():
            print(f"{name:26} {gap:.1e}")


if __name__ == "__main__":
    main()
