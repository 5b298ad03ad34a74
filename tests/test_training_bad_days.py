"""Training runs that are killed, stopped, damaged, out of disk, or not alone."""

import copy
import errno
import importlib
import io
import json
import os
import pickle
import re
import resource
import signal
import struct
import subprocess
import sys
import threading
import zipfile
from contextlib import redirect_stdout
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils import _pytree as trees

from rlnb.training import TrainConfig, checkpoint, digest, loop, run, train, warm_up
from rlnb.training.policy import Policy
from rlnb.training.task import addition

cli = importlib.import_module("rlnb.training.__main__")
pytestmark = pytest.mark.filterwarnings("error")
CONFIG = TrainConfig(
    warmup=0, prompts=8, updates=10, batch=8, samples_per_prompt=4, evaluate_every=5,
    learning_rate=3e-3, beta=0.3,
)  # fmt: skip
LONGER = replace(CONFIG, updates=20)


def small(**settings):
    return replace(CONFIG, **settings)


@pytest.fixture(scope="module")
def start():
    return warm_up(small(warmup=60))


@pytest.fixture(scope="module")
def right(start):
    """The digest where 20 updates without any accident end."""
    return digest(train(LONGER, start=start).policy)


@pytest.fixture(scope="module")
def kept(start, tmp_path_factory):
    """The bytes of a checkpoint after 10 updates."""
    folder = tmp_path_factory.mktemp("kept")
    train(CONFIG, start=start, folder=folder)
    return (folder / checkpoint.NAME).read_bytes()


@pytest.fixture
def file(kept, tmp_path):
    path = tmp_path / checkpoint.NAME
    path.write_bytes(kept)
    return path


@pytest.fixture(autouse=True)
def handlers():
    """No run changes what signals do afterwards, but for SIGTERM in main."""
    usual = signal.getsignal(signal.SIGINT)
    term = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGINT) is usual
    signal.signal(signal.SIGTERM, term)


def end(folder, start=None, config=LONGER):
    """The digest where the run in `folder` ends when it is resumed."""
    got = train(config, start=start, folder=folder, resume=True)
    assert got.ok
    assert not got.stopped
    return digest(got.policy)


def at(done, do):
    """A `watch` that does something after `done` updates."""

    def watch(progress):
        if progress.done == done:
            do()

    return watch


def same(one, other):
    (a, shape), (b, other_shape) = trees.tree_flatten(one), trees.tree_flatten(other)
    return shape == other_shape and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in zip(a, b, strict=True)
    )


# --- stopped --------------------------------------------------------------------------


def test_a_stopped_run_keeps_what_it_learned_and_can_go_on(start, right, tmp_path):
    stop = threading.Event()
    watch = at(5, stop.set)
    got = train(LONGER, start=start, folder=tmp_path, watch=watch, stop=stop)
    assert got.stopped
    assert got.ok
    assert got.updates in (5, 6)
    assert len(got.history.reward) == got.updates == got.history.at[-1]
    assert digest(got.policy) == got.digests["policy after"] != digest(start)
    assert end(tmp_path) == right


def test_a_run_that_is_stopped_from_watch_ends_there(start):
    stop = threading.Event()
    got = train(LONGER, start=start, watch=at(5, stop.set), stop=stop)
    assert got.updates == 5


def test_a_stop_between_two_evaluations_ends_after_the_update(
    start, right, tmp_path, monkeypatch
):
    stop, usual = threading.Event(), loop.Updater.update

    def update(self, k):
        if k == 7:
            stop.set()
        return usual(self, k)

    monkeypatch.setattr(loop.Updater, "update", update)
    got = train(LONGER, start=start, folder=tmp_path, stop=stop)
    assert (got.updates, got.stopped, got.history.at) == (8, True, [0, 5, 8])
    assert end(tmp_path) == right
    history = train(LONGER, folder=tmp_path, resume=True).history
    assert history.at == [0, 5, 10, 15, 20]  # as if nothing had happened
    whole = train(LONGER, start=start).history
    assert (history.reward, history.exact) == (whole.reward, whole.exact)


def test_a_stop_after_the_last_update_is_no_stop(start):
    stop = threading.Event()
    got = train(CONFIG, start=start, watch=at(10, stop.set), stop=stop)
    assert (got.updates, got.stopped) == (10, False)


def test_ctrl_c_stops_the_run_as_the_event_does(start, right, tmp_path):
    usual = signal.getsignal(signal.SIGINT)
    watch = at(5, lambda: signal.raise_signal(signal.SIGINT))
    got = train(LONGER, start=start, folder=tmp_path, watch=watch)
    assert got.stopped
    assert got.updates in (5, 6)
    assert signal.getsignal(signal.SIGINT) is usual
    assert end(tmp_path) == right


def test_a_second_ctrl_c_interrupts_and_the_run_can_go_on(start, right, tmp_path):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(LONGER, start=start, folder=tmp_path, watch=at(10, twice))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert end(tmp_path) == right


def test_the_users_own_handler_comes_back_after_an_error(start):
    usual, mine = signal.getsignal(signal.SIGINT), lambda *_: None
    signal.signal(signal.SIGINT, mine)
    try:
        with pytest.raises(ZeroDivisionError):
            train(CONFIG, start=start, watch=lambda _: 1 / 0)
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, usual)


def test_a_run_in_a_thread_of_its_own(start, right):
    stop, ends = threading.Event(), []

    def go():
        ends.append(train(LONGER, start=start, stop=stop))
        stop.set()
        ends.append(train(LONGER, start=start, stop=stop))

    thread = threading.Thread(target=go)
    thread.start()
    thread.join(60)
    whole, stopped = ends
    assert digest(whole.policy) == right
    assert (stopped.updates, stopped.stopped) == (1, True)


# --- resumed --------------------------------------------------------------------------


def test_a_run_goes_on_where_it_was(start, right, tmp_path):
    first = train(small(updates=7), start=start, folder=tmp_path)
    got = train(LONGER, folder=tmp_path, resume=True)  # the start is in the file
    assert digest(got.policy) == right
    assert got.digests["policy before"] == first.digests["policy before"]
    assert digest(got.reference) == digest(start)
    assert got.history.at == [0, 5, 10, 15, 20]
    assert len(got.history.reward) == 20
    assert got.history.reward[:7] == first.history.reward
    assert got.seconds > first.seconds


def test_resuming_leaves_the_users_random_numbers_alone(file):
    before = torch.get_rng_state()
    train(CONFIG, folder=file.parent, resume=True)
    assert torch.equal(before, torch.get_rng_state())


def test_a_run_that_is_done_is_only_looked_at_again(file, kept, start):
    got = train(CONFIG, folder=file.parent, resume=True, watch=lambda _: 1 / 0)
    assert got.ok
    assert got.updates == 10
    assert digest(got.policy) == digest(train(CONFIG, start=start).policy)
    assert file.read_bytes() == kept


def test_resuming_where_nothing_is_begins(start, tmp_path):
    assert end(tmp_path / "new" / "deep", start, CONFIG) == digest(
        train(CONFIG, start=start).policy
    )


def test_a_folder_that_holds_a_run_is_refused(file, kept, monkeypatch):
    monkeypatch.setattr(run, "warm_up", lambda _: pytest.fail("work was done"))
    message = re.escape(f"folder is '{file.parent}', which holds a run; allowed: ano")
    with pytest.raises(ValueError, match=message):
        train(CONFIG, folder=file.parent)
    assert file.read_bytes() == kept


@pytest.mark.parametrize(
    "name, value",
    [
        ("beta", 0.2), ("seed", 1), ("prompts", 9), ("batch", 9), ("dtype", "float32"),
        ("samples_per_prompt", 5), ("learning_rate", 1e-4), ("gradient", "exact"),
        ("warmup", 1), ("start_seed", 1), ("evaluate_every", 1),
    ],
)  # fmt: skip
def test_other_settings_are_refused(file, kept, name, value):
    with pytest.raises(ValueError) as refusal:
        train(small(**{name: value}), folder=file.parent, resume=True)
    for part in (str(file), f"{name}={getattr(CONFIG, name)!r}", f"{name}={value!r}"):
        assert part in str(refusal.value)
    assert file.read_bytes() == kept


def test_fewer_updates_than_are_done_are_refused(file, kept):
    message = "updates is 9; allowed: at least 10, already done"
    with pytest.raises(ValueError, match=message):
        train(small(updates=9), folder=file.parent, resume=True)
    assert file.read_bytes() == kept


@pytest.mark.parametrize("beta", [np.float64(0.3), np.float32(0.3), torch.tensor(0.3)])
def test_a_run_whose_beta_is_numpys_or_torchs_can_go_on(start, tmp_path, beta):
    config = small(beta=beta, updates=5)
    train(config, start=start, folder=tmp_path)
    assert train(replace(config, updates=6), folder=tmp_path, resume=True).updates == 6


# --- killed -----------------------------------------------------------------------------

KILLS = """
import json, os, random, shutil, signal, sys, time
from pathlib import Path
from rlnb.training.checkpoint import NAME
from rlnb.training import TrainConfig, digest, train, warm_up
folder, rng = Path(sys.argv[1]), random.Random(0)
config = TrainConfig(warmup=20, prompts=8, updates=12, batch=8, samples_per_prompt=4,
                     evaluate_every=1)
start = warm_up(config)
right = digest(train(config, start=start).policy)

def attempt(home, wait):
    child = os.fork()
    if not child:
        try:
            got = train(config, start=start, folder=home, resume=True)
            (home / "end").write_text(f"{digest(got.policy)} {got.ok}")
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    until, gone = time.monotonic() + wait, 0
    while not gone and time.monotonic() < until:
        gone, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.002)
    if not gone:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, home
    return False

begun = time.monotonic()
train(config, start=start, folder=folder / "whole")
whole, ends, left, begun_anew = time.monotonic() - begun, [], set(), 0
for k in range(20):
    home = folder / str(k)
    home.mkdir()
    while not attempt(home, rng.uniform(0.05, 0.9) * whole):
        shutil.rmtree(home)  # it ended before it was killed
        home.mkdir()
    begun_anew += not (home / NAME).exists()
    assert not attempt(home, 120)
    ends.append((home / "end").read_text())
    left.update(path.name for path in home.iterdir())
told = {"ends": ends, "right": right, "left": sorted(left), "anew": begun_anew}
print(json.dumps(told))
"""


def test_20_runs_that_are_killed_at_any_moment_end_where_they_should(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", KILLS, str(tmp_path)],
        capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["ends"] == [f"{told['right']} True"] * 20
    assert told["left"] == [checkpoint.NAME, "end"]
    assert told["anew"] < 10  # most had a checkpoint to go on from


# --- damaged ------------------------------------------------------------------------------


def refused(path, config=CONFIG):
    """Is the file refused by name, and left as it is?"""
    before = path.read_bytes()
    with pytest.raises(ValueError) as refusal:
        train(config, folder=path.parent, resume=True)
    assert str(refusal.value).startswith(f"{path} is ")
    assert "; allowed: " in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("share", [0, 1e-5, 0.01, 0.3, 0.9, 0.999, 0.99999])
def test_a_file_that_was_cut_off_is_refused(file, kept, share):
    file.write_bytes(kept[: int(share * len(kept))])
    refused(file)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 4096, b"a text\n", b"PK\x03\x04", b"PK\x05\x06" + b"\0" * 18],
)
def test_what_is_no_checkpoint_is_refused(file, content):
    file.write_bytes(content)
    refused(file)


def flipped(kept, place, bit):
    return kept[:place] + bytes([kept[place] ^ 1 << bit]) + kept[place + 1 :]


def test_a_flipped_bit_in_the_numbers_is_refused(file, kept):
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(io.BytesIO(kept)) as archive:
        names = [i for i in archive.infolist() if i.file_size >= 64]
    for entry in names:
        name, extra = struct.unpack_from("<HH", kept, entry.header_offset + 26)
        begin = entry.header_offset + 30 + name + extra
        place = begin + int(rng.integers(entry.file_size))
        file.write_bytes(flipped(kept, place, int(rng.integers(8))))
        refused(file)


def test_a_flipped_bit_anywhere_is_refused_or_does_not_matter(file, kept):
    good, rng = checkpoint.load(file, CONFIG), np.random.default_rng(0)
    directory = kept.index(b"PK\x01\x02")
    places = [*rng.integers(len(kept), size=40), *range(directory, len(kept), 5)]
    wrong = {}
    for place in map(int, places):
        bit = int(rng.integers(8))
        file.write_bytes(flipped(kept, place, bit))
        try:
            if not same(checkpoint.load(file, CONFIG), good):
                wrong[place, bit] = "other numbers"
        except Exception as error:  # noqa: BLE001
            if not (isinstance(error, ValueError) and str(file) in str(error)):
                wrong[place, bit] = repr(error)
    assert wrong == {}


def test_an_entry_marked_as_a_folder_does_not_give_other_numbers(file, kept):
    good = checkpoint.load(file, CONFIG)
    places = [m.start() for m in re.finditer(b"PK\x01\x02", kept)]
    assert len(places) > 10
    wrong = []
    for place in places:
        file.write_bytes(flipped(kept, place + 38, 4))  # the attribute "directory"
        try:
            if not same(checkpoint.load(file, CONFIG), good):
                wrong.append(place)
        except ValueError as error:
            assert str(file) in str(error)
    assert wrong == []


class Payload:
    """Runs when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self.canary),)


def in_our_zip(path, kept, payload):
    with zipfile.ZipFile(io.BytesIO(kept)) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            mine = entry.filename.endswith("data.pkl")
            whole = pickle.dumps({"policy": payload}, 2) if mine else old.read(entry)
            new.writestr(entry.filename, whole)


WAYS = {
    "torch.save": lambda path, kept, payload: torch.save(
        {"format": checkpoint.FORMAT, "policy": payload}, path
    ),
    "bare pickle": lambda path, kept, payload: path.write_bytes(pickle.dumps(payload)),
    "our zip": in_our_zip,
    "our writer": lambda path, kept, payload: checkpoint.save(
        path, CONFIG, {key: payload for key in checkpoint.KEYS}
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_in_a_file_is_executed(file, kept, tmp_path, way):
    canary = tmp_path / "canary"
    WAYS[way](file, kept, Payload(canary))
    refused(file)
    assert not canary.exists()


def test_the_payload_would_have_run(tmp_path):
    canary = tmp_path / "canary"
    pickle.loads(pickle.dumps(Payload(canary)))
    assert canary.is_dir()


@pytest.mark.parametrize("key", checkpoint.KEYS)
def test_a_file_without_one_of_its_parts_is_refused(file, key):
    content = checkpoint.load(file, CONFIG)
    del content[key]
    checkpoint.save(file, CONFIG, content)
    refused(file)


def test_a_file_of_another_format_is_refused(file, monkeypatch):
    content = checkpoint.load(file, CONFIG)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", "rlnb.training 0")
        checkpoint.save(file, CONFIG, content)
    refused(file)


def short_optimizer(content):
    state = content["optimizer"]["state"][0]
    state["exp_avg"] = state["exp_avg"][:7]


def double(content):
    for each in (content["policy"], content["reference"]):
        each["tens.weight"] = each["tens.weight"].repeat(2, 1)


def moved_reference(content):
    content["reference"]["tens.bias"] = content["reference"]["tens.bias"] + 2**-40


def setting(key, value):
    def change(content):
        content[key] = value

    return change


CHANGES = {
    "policy of another shape": double,
    "reference that moved": moved_reference,
    "policy without weights": setting("policy", {}),
    "policy no dict": setting("policy", 3),
    "done a text": setting("done", "10"),
    "done below 0": setting("done", -1),
    "history of another kind": setting("history", {"rewards": []}),
    "history no dict": setting("history", 3),
    "history too short": lambda c: c["history"]["reward"].pop(),
    "no digests": setting("digests", {}),
    "optimizer of another shape": short_optimizer,
    "optimizer empty": setting("optimizer", {}),
    "optimizer without state": lambda c: c["optimizer"]["state"].clear(),
    "seconds a text": setting("seconds", "long"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_parts_that_do_not_fit_are_refused(file, name):
    content = checkpoint.load(file, CONFIG)
    CHANGES[name](content)
    checkpoint.save(file, CONFIG, content)
    refused(file, LONGER)


def test_a_folder_in_the_files_place_is_refused(tmp_path):
    (tmp_path / checkpoint.NAME).mkdir()
    with pytest.raises(ValueError, match=checkpoint.NAME):
        train(CONFIG, folder=tmp_path, resume=True)


def test_another_network_is_refused(file, start):
    class Wider(Policy):
        def __init__(self):
            super().__init__(width=32)

    message = re.escape(f"{file} is of another policy")
    with pytest.raises(ValueError, match=message):
        train(CONFIG, start=Wider(), folder=file.parent, resume=True)


# --- no room, no permission -----------------------------------------------------------------


class Full:
    """A file on a disk that takes so many bytes and no more."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        self.room -= len(memoryview(data).cast("B"))
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.fixture
def disk(monkeypatch):
    """disk["room"]: how many bytes fit into a file that is being written."""
    usual, disk = Path.open, {}

    def limited(self, mode="r", *rest, **options):
        file = usual(self, mode, *rest, **options)
        return Full(file, disk["room"]) if "w" in mode and "room" in disk else file

    monkeypatch.setattr(Path, "open", limited)
    return disk


@pytest.mark.parametrize("room", [0, 5000, 400_000])
def test_a_full_disk_does_not_end_the_run(start, right, tmp_path, disk, room):
    path, seen = tmp_path / checkpoint.NAME, []

    def watch(progress):
        if progress.done == 5:
            disk["room"] = room
        if progress.done == 15:
            seen.append(checkpoint.load(path, LONGER)["done"])
            seen.append(sorted(os.listdir(tmp_path)))
            del disk["room"]

    message = r"the checkpoint could not be written \(.*\); .* the run goes on"
    with pytest.warns(UserWarning, match=message) as warned:
        got = train(LONGER, start=start, folder=tmp_path, watch=watch)
    assert seen == [5, [checkpoint.NAME]]
    said = [str(warning.message) for warning in warned]
    assert [text[: len("after update 10 ")] for text in said] == [
        "after update 10 ", "after update 15 "
    ]  # fmt: skip
    assert all(str(path) in text for text in said)
    assert all("No space left" in text for text in said)
    assert digest(got.policy) == right
    assert checkpoint.load(path, LONGER)["done"] == 20
    assert os.listdir(tmp_path) == [checkpoint.NAME]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_device_that_is_really_full(start, right, tmp_path):
    path = tmp_path / checkpoint.NAME
    part = tmp_path / f".{checkpoint.NAME}.part"
    watch = at(5, lambda: part.symlink_to("/dev/full"))
    message = "after update 10 the checkpoint could not be written"
    with pytest.warns(UserWarning, match=message) as warned:
        got = train(small(updates=12), start=start, folder=tmp_path, watch=watch)
    assert len(warned) == 1
    assert "No space left" in str(warned[0].message)
    assert got.ok
    assert os.listdir(tmp_path) == [checkpoint.NAME]
    assert checkpoint.load(path, LONGER)["done"] == 12
    assert end(tmp_path) == right


def test_a_file_that_may_not_grow_further(start, tmp_path):
    path = tmp_path / checkpoint.NAME
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    watch = at(5, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, usual[1])))
    try:
        with pytest.warns(
            UserWarning, match="after update 10 the checkpoint could not"
        ):
            got = train(CONFIG, start=start, folder=tmp_path, watch=watch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert got.ok
    assert os.listdir(tmp_path) == [checkpoint.NAME]
    assert checkpoint.load(path, CONFIG)["done"] == 5


def test_a_folder_that_vanishes_does_not_end_the_run(start, right, tmp_path):
    home = tmp_path / "home"
    watch = at(5, lambda: home.rename(tmp_path / "away"))
    with pytest.warns(UserWarning, match="No such file or directory"):
        got = train(LONGER, start=start, folder=home, watch=watch)
    assert digest(got.policy) == right
    assert end(tmp_path / "away") == right


def test_a_folder_that_cannot_be_written_in_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "warm_up", lambda _: pytest.fail("work was done"))
    (tmp_path / "text").write_text("mine")
    for folder in (tmp_path / "text", tmp_path / "text" / "below"):
        message = re.escape(f"folder is '{folder}'; allowed: a folder to write in (")
        with pytest.raises(ValueError, match=message):
            train(CONFIG, folder=folder)
    assert (tmp_path / "text").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not hold for root")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(
            ValueError, match="allowed: a folder to write in .Permission"
        ):
            train(CONFIG, folder=tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_permission_that_is_taken_away_does_not_end_the_run(
    start, tmp_path, monkeypatch
):
    def denied(self, target):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    watch = at(5, lambda: monkeypatch.setattr(Path, "replace", denied))
    with pytest.warns(UserWarning, match=r"could not be written \(Permission denied\)"):
        got = train(CONFIG, start=start, folder=tmp_path, watch=watch)
    assert got.ok
    assert os.listdir(tmp_path) == [checkpoint.NAME]
    assert checkpoint.load(tmp_path / checkpoint.NAME, CONFIG)["done"] == 5


# --- numbers that break down ------------------------------------------------------------------


def test_weights_that_become_nan_end_the_run_and_the_last_checkpoint_is_good(
    start, tmp_path, monkeypatch
):
    usual = loop.Updater.update

    def update(self, k):
        means = usual(self, k)
        if k == 7:  # the eighth update
            self.weights.data[123] = float("nan")
        return means

    monkeypatch.setattr(loop.Updater, "update", update)
    path = tmp_path / checkpoint.NAME
    message = (
        f"the policy is not finite after update 8; the last good checkpoint is {path}; "
        "try a learning_rate below 0.003"
    )
    with pytest.raises(FloatingPointError, match=f"^{re.escape(message)}$"):
        train(LONGER, start=start, folder=tmp_path)
    content = checkpoint.load(path, LONGER)
    assert content["done"] == 5
    leaves, _ = trees.tree_flatten(content)
    assert all(x.isfinite().all() for x in leaves if isinstance(x, torch.Tensor))
    monkeypatch.undo()
    end(tmp_path)


def test_a_learning_rate_far_too_large_says_so(start):
    config = small(dtype="float32", learning_rate=1e20)
    message = "not finite after update 1; no checkpoint was kept; try .* below 1e.20"
    with pytest.raises(FloatingPointError, match=message):
        train(config, start=start)


def test_the_last_good_checkpoint_is_good(start, tmp_path):
    config = small(dtype="float32", learning_rate=1e12, evaluate_every=1)
    with pytest.raises(FloatingPointError) as error:
        train(config, start=start, folder=tmp_path)
    path = tmp_path / checkpoint.NAME
    assert str(path) in str(error.value) or not path.exists()
    if path.exists():
        policy = copy.deepcopy(start).float()
        policy.load_state_dict(checkpoint.load(path, config)["policy"])
        assert policy.log_probs(addition().prompts).isfinite().all()


def test_a_policy_that_breaks_down_in_the_last_update_is_not_a_wrong_argument(start):
    config = small(dtype="float32", learning_rate=1e12, updates=1)
    with pytest.raises(FloatingPointError, match="not finite after update 1"):
        train(config, start=start)


# --- the command line -----------------------------------------------------------------------------

SETTINGS = {
    "warmup": 30, "prompts": 8, "updates": 20, "batch": 16, "samples-per-prompt": 4,
    "evaluate-every": 5, "learning-rate": 0.003,
}  # fmt: skip


def arguments(folder, *more, **settings):
    settings = {**SETTINGS, **settings}
    flags = [str(x) for name, v in settings.items() for x in (f"--{name}", v)]
    return [*flags, "--folder", str(folder), *more]


def report(folder):
    return json.loads((folder / "report.json").read_text())


def environment(**more):
    fixed = "ATEN_", "OMP_", "MKL_", "OPENBLAS_"  # conftest sets some of them
    free = {k: v for k, v in os.environ.items() if not k.startswith(fixed)}
    return {**free, "OMP_NUM_THREADS": "1", **more}


def printed(folder, *more, start=("-m",), env=None, **settings):
    """What the command prints to stdout, in a process of its own."""
    command = [sys.executable, *start, "rlnb.training"]
    ran = subprocess.run(
        [*command, *arguments(folder, *more, **settings)],
        capture_output=True, text=True, env=environment(**env or {}), check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """(folder, stdout) of a run in this process, with one thread."""
    folder, out = tmp_path_factory.mktemp("usual") / "run", io.StringIO()
    with redirect_stdout(out):
        assert cli.main(arguments(folder)) == 0
    return folder, out.getvalue()


TORCHRUN = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"
THREADS, KERNELS = {"OMP_NUM_THREADS": "2"}, {"ATEN_CPU_CAPABILITY": "default"}
WAYS_TO_RUN = {
    "two processes": ({"start": TORCHRUN}, {"processes": 2}),
    "a process of its own": ({}, {"processes": 1, "threads": 1}),
    "plain kernels": ({"env": KERNELS}, {"kernels": "DEFAULT"}),
    "two threads": ({"env": THREADS, "threads": 2}, {"threads": 2}),
    "two threads, plain kernels": (
        {"env": {**THREADS, **KERNELS}, "threads": 2},
        {"threads": 2, "kernels": "DEFAULT"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "way",
    [
        *list(WAYS_TO_RUN)[:1],
        *(pytest.param(way, marks=pytest.mark.slow) for way in list(WAYS_TO_RUN)[1:]),
    ],
)
def test_every_way_to_run_prints_the_same_digits(usual, tmp_path, way):
    folder, right = usual
    options, machine = WAYS_TO_RUN[way]
    assert printed(tmp_path, **options) == right
    one, other = report(folder), report(tmp_path)
    for name in ("policy before", "reference before", "reference after"):
        assert one["digests"][name] == other["digests"][name]
    assert machine.items() <= other["machine"].items()
    assert sorted(os.listdir(tmp_path)) == [
        checkpoint.NAME,
        "curves.png",
        "report.json",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["sampled", "exact"])
def test_two_processes_with_more_prompts_than_a_batch(tmp_path, gradient):
    settings = {"prompts": 30, "batch": 6, "gradient": gradient}
    alone = printed(tmp_path / "one", **settings)
    assert printed(tmp_path / "two", start=TORCHRUN, **settings) == alone


def test_sigterm_ends_with_130_and_a_report_and_the_run_goes_on(
    usual, tmp_path, capsys, monkeypatch
):
    folder, right = usual
    say = cli.say

    def interrupted(text):
        say(text)
        if text.split()[0] == "10":
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(cli, "say", interrupted)
        assert cli.main(arguments(tmp_path)) == 130
    stopped = capsys.readouterr().out
    done = report(tmp_path)["updates"]
    assert done in (10, 11)
    assert report(tmp_path)["stopped"] is True
    assert stopped.endswith(f"stopped after update {done} of 20\n")
    assert cli.main(arguments(tmp_path, "--resume")) == 0
    resumed = capsys.readouterr().out
    assert report(tmp_path)["digests"] == report(folder)["digests"]
    lines = right.splitlines()
    head, rows, rest = lines[:2], lines[2:-7], lines[-7:]
    assert resumed.splitlines() == [*head, *rows[-2:], *rest]
    assert stopped.splitlines()[: len(head) + len(rows[:-2])] == head + rows[:-2]


def test_a_report_has_all_that_was_asked_and_found(usual):
    folder, out = usual
    told = report(folder)
    assert set(told["settings"]) == {f.name for f in fields(TrainConfig)}
    assert told["settings"]["learning_rate"] == 0.003
    assert told["versions"]["torch"] == torch.__version__
    assert set(told["machine"]) >= {"system", "processor", "gpu", "cores", "threads"}
    assert all(len(x) == 64 for x in told["digests"].values())
    assert len(told["digests"]) == 4
    assert all(check["ok"] for check in told["checks"])
    assert len(told["history"]["reward"]) == told["updates"] == 20
    assert told["history"]["at"] == [0, 5, 10, 15, 20]
    last = out.splitlines()[-len(told["checks"]) - 1].split()
    ends = [
        told["end"][group][measure]
        for measure in ("reward", "kl") for group in ("trained", "other train", "held out")
    ]  # fmt: skip
    assert last == ["20", *(f"{x:.4f}" for x in ends)]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert checkpoint.load(folder / checkpoint.NAME, TrainConfig(**told["settings"]))


def test_the_last_row_is_where_the_run_ended(tmp_path, capsys):
    cli.main(arguments(tmp_path, updates=7))
    rows = [x.split()[0] for x in capsys.readouterr().out.splitlines()[2:]]
    assert "7" in rows


def test_help_names_every_setting(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for f in fields(TrainConfig):
        assert f"--{f.name.replace('_', '-')} " in said.replace("\n", " ")
    for flag in ("--betas", "--seeds", "--folder", "--resume", "torchrun"):
        assert flag in said


BAD = [
    (["--samples-per-prompt", "1"], "samples_per_prompt is 1; allowed"),
    (["--beta", "-1"], "beta is -1.0; allowed"),
    (["--beta", "nan"], "beta is nan; allowed"),
    (["--prompts", "1251"], "prompts is 1251; allowed"),
    (["--betas", "0.1", "0.1"], r"betas is [0.1, 0.1]; allowed"),
    (["--betas", "0.1", "--resume"], "a sweep runs in one process and is not resumed"),
    (["--cuda-graph"], "cuda_graph is True; allowed"),
    (["--device", "mps"], "is 'float64'; allowed: 'float32' on device 'mps'"),
]


@pytest.mark.parametrize("more, message", BAD, ids=str)
def test_bad_settings_end_with_one_line_and_2(tmp_path, capsys, more, message):
    assert cli.main(["--folder", str(tmp_path / "new"), *more]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("rlnb.training: ")
    assert said.err.count("\n") == 1
    assert message in said.err
    assert not (tmp_path / "new" / checkpoint.NAME).exists()


@pytest.mark.parametrize("more", [["--gradient", "k4"], ["--dtype", "bfloat16"]])
def test_choices_that_are_none_end_with_2(capsys, more):
    with pytest.raises(SystemExit) as ended:
        cli.main(more)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert more[1] in said.splitlines()[-1]
    assert "Traceback" not in said


def test_a_folder_with_a_run_ends_with_2(usual, capsys):
    folder, _ = usual
    before = (folder / "report.json").read_bytes()
    for more in ([], ["--betas", "0"]):
        assert cli.main(arguments(folder, *more)) == 2
        said = capsys.readouterr()
        assert "which holds a run" in said.err
        assert said.err.count("\n") == 1
    assert (folder / "report.json").read_bytes() == before


def test_a_policy_that_breaks_down_ends_with_1(tmp_path, capsys):
    settings = {"dtype": "float32", "learning-rate": 1e20}
    assert cli.main(arguments(tmp_path, **settings)) == 1
    said = capsys.readouterr().err
    assert said.startswith("rlnb.training: the policy is not finite after update 1; ")
    assert said.count("\n") == 1


def test_a_report_that_does_not_fit_ends_with_1(tmp_path, capsys, disk, monkeypatch):
    def none_left(*_):
        disk["room"] = 100
        return report_as_usual(*_)

    report_as_usual = cli.report
    monkeypatch.setattr(cli, "report", none_left)
    assert cli.main(arguments(tmp_path, warmup=0, updates=5)) == 1
    said = capsys.readouterr()
    assert said.err.startswith("rlnb.training: could not write: ")
    assert "No space left" in said.err
    assert os.listdir(tmp_path) == [checkpoint.NAME]


def test_a_check_that_fails_ends_with_1(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.optim.Adam, "step", lambda *_: None)
    assert cli.main(arguments(tmp_path, warmup=0, updates=5)) == 1
    failed = [x for x in capsys.readouterr().out.splitlines() if "FAILED" in x]
    assert len(failed) == 1
    assert "policy" in failed[0]
    assert sum(not check["ok"] for check in report(tmp_path)["checks"]) == 1


def test_a_sweep_leaves_a_report_and_a_picture(usual, tmp_path, capsys):
    folder, _ = usual
    more = ["--betas", "0.1", "2", "--seeds", "0", "1", "2"]
    assert cli.main(arguments(tmp_path, *more)) == 0
    told = report(tmp_path)
    assert (told["betas"], told["seeds"]) == ([0.1, 2.0], [0, 1, 2])
    assert sorted(os.listdir(tmp_path)) == ["curves.png", "report.json"]
    alone = report(folder)  # beta 0.1 and seed 0 are the defaults
    for group, each in alone["end"].items():
        for measure, value in each.items():
            assert np.shape(told["end"][group][measure]) == (2, 3)
            got = told["end"][group][measure][0][0]
            assert got == pytest.approx(value, abs=1e-8)
            first = alone["history"]["exact"][group][measure][0]
            assert told["start"][group][measure] == pytest.approx(first, abs=1e-12)
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[-2:]] == ["β=0.1", "β=2"]
    means = [np.mean(told["end"][g]["reward"], 1) for g in alone["end"]]
    assert out[-1].split()[1:4] == [f"{mean[1]:.4f}" for mean in means]


def test_ctrl_c_ends_a_sweep_without_a_traceback(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli, "hint", lambda _: signal.raise_signal(signal.SIGINT))
    try:
        assert cli.main(arguments(tmp_path, "--betas", "0", "1")) == 130
    except KeyboardInterrupt:
        pytest.fail("a traceback")
