"""Train from the command line; every experiment of lesson 07 can be run here.

    python -m rlnb.training                            one run, as in the lesson
    python -m rlnb.training --beta 1 --prompts 64 --warmup 125
    python -m rlnb.training --gradient exact           without sampling noise
    python -m rlnb.training --betas 0 0.1 1 --seeds 0 1 2 3 4
    python -m rlnb.training --folder runs/mine --resume    go on after a kill
    torchrun --nproc-per-node 2 -m rlnb.training       two processes

Ctrl-C ends a run after the update it is at and keeps what was learned. What is
printed to stdout depends on the settings alone, not on machine or speed.
"""

import argparse
import signal
import sys
import threading
import time
from dataclasses import fields
from pathlib import Path

from . import checkpoint, processes
from .config import DEVICES, DTYPES, GRADIENTS, TrainConfig
from .report import report, report_sweep
from .run import train
from .sweep import sweep
from .task import GROUPS

CHOICES = {"device": DEVICES, "dtype": tuple(DTYPES), "gradient": GRADIENTS}
HEAD = f"""\
         expected reward                       KL(p||q), nats
updates{"".join(f"{g:>12}" for g in GROUPS)}{"".join(f"{g:>13}" for g in GROUPS)}"""


def main(arguments=None):
    args = vars(parser().parse_args(arguments))
    names = [f.name for f in fields(TrainConfig)]
    try:
        config = TrainConfig(**{name: args[name] for name in names})
        processes.join(config.torch_device)
        if args["resume"] and not args["folder"]:
            raise ValueError("--resume needs --folder, the run to go on with")
        several = args["betas"] or args["seeds"]
        return (many if several else one)(config, args)
    except (ValueError, FloatingPointError) as error:
        print(f"rlnb.training: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        print("rlnb.training: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"rlnb.training: could not write: {error}", file=sys.stderr)
        return 1
    finally:
        processes.leave()


def parser():
    about, _, examples = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m rlnb.training", description=about, epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    for f in fields(TrainConfig):
        flag, said = "--" + f.name.replace("_", "-"), f.metadata["help"]
        if isinstance(f.default, bool):
            parser.add_argument(flag, action="store_true", help=said)
            continue
        parser.add_argument(
            flag, type=type(f.default), default=f.default, choices=CHOICES.get(f.name),
            help=f"{said} (default {f.default})",
        )  # fmt: skip
    several = parser.add_argument_group("a sweep: every beta with every seed, at once")
    several.add_argument("--betas", type=float, nargs="+", metavar="BETA")
    several.add_argument("--seeds", type=int, nargs="+", metavar="SEED")
    kept = parser.add_argument_group("what is kept")
    kept.add_argument("--folder", help="default: runs/ and the time")
    kept.add_argument("--resume", action="store_true", help="go on, if a run is there")
    return parser


def one(config, args):
    folder = _folder(args)
    stop, shown = threading.Event(), []
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def show(done, history):
        shown.append(done)
        last = {g: {m: v[-1] for m, v in x.items()} for g, x in history.exact.items()}
        say(_row(done, last))

    def watch(progress):
        show(progress.done, progress.history)
        left = f"{progress.seconds_left:.0f} s left"
        hint(f"{progress.done} of {progress.updates}, {left}")

    say(HEAD)
    result = train(config, folder=folder, resume=args["resume"], watch=watch, stop=stop)
    if result.updates not in shown:
        show(result.updates, result.history)
    for check in result.checks:
        say(f"{'ok' if check.ok else 'FAILED':6} {check}")
    if processes.rank() == 0:
        report(result, folder)
        note(f"{result.updates} updates, {result.seconds:.1f} s: {folder}")
    if result.stopped:
        say(f"stopped after update {result.updates} of {config.updates}")
        return 130
    return 0 if result.ok else 1


def many(config, args):
    folder = _folder(args)
    if args["resume"] or processes.count() > 1:
        raise ValueError("a sweep runs in one process and is not resumed")
    checkpoint.place(folder, resume=False)
    if (folder / "report.json").exists():
        raise ValueError(f"folder is {str(folder)!r}, which holds a report")
    betas, seeds = args["betas"] or [config.beta], args["seeds"] or [config.seed]
    watch = lambda done, of: hint(f"{done} of {of}")
    result = sweep(config, betas, seeds, watch=watch)
    say(f"means over {len(seeds)} seeds; the first line: before\n{HEAD}")
    say(_row("", result.start))
    for k, beta in enumerate(betas):
        exact = result.exact.items()
        mean = {g: {m: v[k].mean() for m, v in each.items()} for g, each in exact}
        say(_row(f"β={beta:g}", mean))
    report_sweep(result, folder)
    note(str(folder))
    return 0


def _row(first, figures):
    def cell(group, measure):  # empty where no prompt is of the group
        return f"{figures[group][measure]:.4f}" if group in figures else ""

    rewards = "".join(f"{cell(g, 'reward'):>12}" for g in GROUPS)
    kls = "".join(f"{cell(g, 'kl'):>13}" for g in GROUPS)
    return f"{first:>7}{rewards}{kls}"


def _folder(args):
    return Path(args["folder"] or f"runs/{time.strftime('%Y-%m-%d_%H%M%S')}")


def say(text):
    """To stdout, once: whatever is printed there is the same on every machine."""
    if processes.rank() == 0:
        print(text, flush=True)


def note(text):
    """To stderr: what depends on the machine."""
    if processes.rank() == 0:
        print(text, file=sys.stderr, flush=True)


def hint(text):
    """To a terminal: a line that the next one replaces."""
    if sys.stderr.isatty() and processes.rank() == 0:
        print(f"{text:40}", end="\r", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
