"""train(config): warm-up, frozen reference, updates, exact evaluation, checks."""

import copy
import signal
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

import torch

from ..inputs import refuse
from . import checkpoint, processes
from .checks import Check, exact_checks, first_ratio
from .config import TrainConfig
from .evaluation import MEASURES, Evaluation, enumerated, quietly
from .loop import Updater
from .policy import Policy, digest, freeze_reference
from .task import Task, addition
from .warmup import warm_up


@dataclass
class History:
    """What was measured on the way, as plain numbers.

    reward, log_ratio: means over each update's samples. at: after how many
    updates everything was enumerated; exact[group][measure]: the mean over
    the group's prompts, one number for each entry of `at`.
    """

    reward: list = field(default_factory=list)
    log_ratio: list = field(default_factory=list)
    at: list = field(default_factory=list)
    exact: dict = field(default_factory=dict)

    def note(self, done, groups, evaluation):
        self.at.append(done)
        for name, index in groups.items():
            kept = self.exact.setdefault(name, {m: [] for m in MEASURES})
            for measure, value in evaluation.means(index).items():
                kept[measure].append(value)


@dataclass(frozen=True)
class TrainResult:
    """A run as it ended.

    before, after: exact Evaluations of all 2,500 prompts; groups: indices
    into them, by name. digests: sha256 of policy and reference, before and
    after. updates: how many were made; stopped: fewer than asked for.
    """

    config: TrainConfig
    task: Task
    groups: dict
    policy: torch.nn.Module
    reference: torch.nn.Module
    history: History
    before: Evaluation
    after: Evaluation
    checks: list
    digests: dict
    updates: int
    stopped: bool
    seconds: float

    @property
    def ok(self):
        """Did every check hold?"""
        return all(check.ok for check in self.checks)


@dataclass(frozen=True)
class Progress:
    """What `watch` is called with; the history is the run's own, and grows."""

    done: int
    updates: int
    seconds_left: float
    history: History


def train(config, *, start=None, folder=None, resume=False, watch=None, stop=None):
    """Train as `config` says; return a TrainResult.

    start: a policy to begin with, copied; default: warm_up(config)'s. folder:
    where checkpoints go, one at each exact evaluation; with resume=True a run
    goes on from the one that is there, or begins. watch: called with a
    Progress at each exact evaluation. stop: a threading.Event; when it is set,
    or at Ctrl-C, the run ends after the update it is at and returns what was
    learned. ValueError, before any update: what cannot be run.
    FloatingPointError: the policy became NaN or infinite.
    """
    if not isinstance(config, TrainConfig):
        refuse("config", type(config).__name__, "a TrainConfig")
    if not (start is None or isinstance(start, torch.nn.Module)):
        refuse("start", type(start).__name__, "a torch.nn.Module, or None")
    if resume and not folder:
        refuse("resume", resume, "False where no folder is given")
    device = processes.join(config.torch_device)
    file = checkpoint.place(folder, resume) if folder else None
    saved = checkpoint.load(file, config) if file else None
    with _threads(config.threads), _stoppable(stop) as asked:
        return _Run(config, device, start, file, saved).go(watch, asked)


class _Run:
    """A run between its updates."""

    def __init__(self, config, device, start, file, saved):
        self.config, self.file = config, file
        to = {"device": device, "dtype": config.torch_dtype}
        if start is None:
            with torch.random.fork_rng(devices=[]):
                start = Policy() if saved else warm_up(config)
        self.policy = copy.deepcopy(start).requires_grad_(True).to(**to)
        self.reference = freeze_reference(self.policy)
        if saved:
            checkpoint.put_back(file, saved, self.policy, self.reference)
        task = addition(config.start_seed)
        self.task = replace(task, **{k: x.to(device) for k, x in vars(task).items()})
        self.groups = self.task.groups(config.prompts)
        known = self.task.prompts, self.task.answers
        known = [x[self.groups["trained"]] for x in known]
        self.updater = Updater(self.policy, self.reference, *known, config)
        self.logq = quietly(self.reference, self.task.prompts)
        self.pending, self.begun = [], time.perf_counter()
        if saved:
            self.updater.optimizer.load_state_dict(saved["optimizer"])
            self.history, self.done = History(**saved["history"]), saved["done"]
            self.earlier, self.digests = saved["seconds"], saved["digests"]
            self.off = saved["first_ratio"]
            return
        self.history, self.done, self.earlier = History(), 0, 0.0
        self.digests = {
            "reference before": digest(self.reference),
            "policy before": digest(self.policy),
        }
        self.off = first_ratio(self.policy, known[0], *self.updater.drawn(0))
        self.history.note(0, self.groups, self.evaluate())

    def go(self, watch, stop):
        config, first, stopped, exact = self.config, self.done, False, None
        while self.done < config.updates and not stopped:
            self.pending += self.updater.update(self.done)
            self.done += 1
            due = self.done % config.evaluate_every == 0
            stopped = processes.anywhere(stop.is_set())
            if not (due or stopped):
                continue
            exact = self.read()
            if due:
                self.history.note(self.done, self.groups, exact)
            self.save()
            if due and watch is not None:
                pace = (time.perf_counter() - self.begun) / (self.done - first)
                left = pace * (config.updates - self.done)
                watch(Progress(self.done, config.updates, left, self.history))
            if due:  # watch may have asked for it
                stopped = processes.anywhere(stop.is_set())
        if self.pending:
            exact = self.read()
            self.save()
        if exact is None:  # resumed at its end
            exact = self.evaluate()
        return self.result(exact, stopped and self.done < config.updates)

    def read(self):
        """Bring the batches' figures from the device; evaluate. All must be finite."""
        if self.pending:
            figures = torch.stack(self.pending).view(-1, 2).cpu()
            self.pending = []
            self.history.reward += figures[:, 0].tolist()
            self.history.log_ratio += figures[:, 1].tolist()
            bad = (~figures.isfinite().all(1)).nonzero()
            first = self.done - len(figures)
            if len(bad):  # the batch of this update, so the one before spoilt it
                self.give_up(first + int(bad[0]))
        exact = self.evaluate()
        for x in (self.updater.weights, exact.kl, exact.entropy):
            if not x.isfinite().all():
                self.give_up(self.done)
        return exact

    def give_up(self, update):
        kept = "no checkpoint was kept"
        if self.file is not None and self.file.exists():
            kept = f"the last good checkpoint is {self.file}"
        raise FloatingPointError(
            f"the policy is not finite after update {update}; {kept}; "
            f"try a learning_rate below {self.config.learning_rate:g}"
        )

    def save(self):
        """Keep the run so far. A disk that is full does not end it."""
        if self.file is None or processes.rank():
            return
        content = {
            "done": self.done,
            "policy": self.policy.state_dict(),
            "reference": self.reference.state_dict(),
            "optimizer": self.updater.optimizer.state_dict(),
            "history": asdict(self.history),
            "digests": self.digests,
            "first_ratio": self.off,
            "seconds": self.seconds,
        }
        try:
            checkpoint.save(self.file, self.config, content)
        except OSError as error:
            warnings.warn(
                f"after update {self.done} the checkpoint could not be written "
                f"({error.strerror or error}); {self.file} is as it was before, the "
                "run goes on",
                stacklevel=2,
            )

    @property
    def seconds(self):
        return self.earlier + time.perf_counter() - self.begun

    def evaluate(self):
        """Everything enumerated, as evaluate(policy, reference, ...) does."""
        logp = quietly(self.policy, self.task.prompts)
        return enumerated(logp, self.logq, self.task.answers)

    def result(self, after, stopped):
        seconds = self.seconds
        if self.history.at[-1] != self.done:
            self.history.note(self.done, self.groups, after)
        digests = {
            **self.digests,
            "reference after": digest(self.reference),
            "policy after": digest(self.policy),
        }
        moved = digests["reference before"] != digests["reference after"]
        still = digests["policy before"] == digests["policy after"]
        ends = processes.everywhere(digests["policy after"])
        checks = [
            Check("the reference's sha256 is what it was", float(moved), 0),
            Check("the policy's sha256 is another", float(still), 0),
            Check("p/o is exactly 1 in the first batch", self.off, 0),
            *exact_checks(
                self.policy, self.reference, after, self.task,
                self.groups["trained"], self.config.beta,
            ),
            Check("all processes end with equal weights", float(len(set(ends)) - 1), 0),
        ]  # fmt: skip
        return TrainResult(
            self.config, self.task, self.groups, self.policy, self.reference,
            self.history, enumerated(self.logq, self.logq, self.task.answers), after,
            checks, digests, self.done, stopped, seconds,
        )  # fmt: skip


@contextmanager
def _threads(count):
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


@contextmanager
def _stoppable(stop):
    """An Event that Ctrl-C sets, too; a second Ctrl-C interrupts as usual."""
    stop = threading.Event() if stop is None else stop
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    usual = signal.getsignal(signal.SIGINT)

    def ask(*_):
        stop.set()
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, usual)
