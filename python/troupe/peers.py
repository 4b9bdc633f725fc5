"""Which rank is gone, where an exchange between ranks fails: Gloo names a port, and every other rank only that it failed.

Before its first exchange each process writes who it is into PyTorch's store, and reads after it who the others are. In an exchange
that fails, ranks answer a roll call there. Who does not within ROLL_CALL seconds is named; a process of this machine that has
ended is known at once."""
import contextlib
import functools
import os
import pathlib
import time

ROLL_CALL = 10.0


class RankLost(RuntimeError):
    """A rank of the group has ended or does not answer: `ranks`, by their numbers in the whole job."""

    def __init__(self, text: str, ranks: list[int]) -> None:
        super().__init__(text)
        self.ranks = ranks


def _machine():
    """This machine and its space of process numbers."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid):
    """When a process of this machine began, or nothing if it has ended."""
    try:
        of = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if of[0] in "ZX" else of[19]


def _store():
    import torch.distributed as dist
    return dist.PrefixStore("troupe/peers", dist.distributed_c10d._get_default_store())


@functools.cache
def _introduce(pid, rank, store):
    """Tells the other ranks who this one is, once a job."""
    with contextlib.suppress(RuntimeError):  # a store that keeps nothing: of PyTorch's fake groups
        _store().set(f"process {rank}", f"{pid} {_started(pid)} {_machine()}")


_identities = {}  # name of a group -> {rank: who it is}, read once a first exchange has shown that all have written it


def _learn(name, members):
    _identities[name] = {}
    with contextlib.suppress(RuntimeError):
        store = _store()
        _identities[name] = {r: store.get(f"process {r}").decode() for r in members if store.check([f"process {r}"])}


def _ended(identity):
    """The process number of a rank that was on this machine and has ended, or nothing."""
    pid, started, machine = identity.split(" ", 2) if identity else ("", "", "")
    return pid if started and machine and machine == _machine() and _started(pid) != started else ""


def _all_answer(store, key, ranks, seconds, stop=lambda missing: False):
    """The ranks that have not written the key within so many seconds; sooner where `stop` says so of them."""
    until, missing = time.monotonic() + seconds, list(ranks)
    while missing and not stop(missing) and time.monotonic() < until:
        time.sleep(0.02)
        missing = [r for r in missing if not store.check([f"{key} {r}"])]
    return missing


def _roll_call(name, members, me):
    """{rank: why} of those that are gone."""
    who, others = _identities.get(name, {}), [r for r in members if r != me]

    def ended(ranks):
        return {r: f"(process {pid}) has ended" for r in ranks if (pid := _ended(who.get(r, "")))}

    missing = others
    try:
        store = _store()
        store.set(f"here {name} {me}", "")
        missing = _all_answer(store, f"here {name}", others, ROLL_CALL, lambda missing: len(ended(missing)) == len(missing))
    except RuntimeError:  # the store has ended with its process
        gone = ended(others)
        time.sleep(ROLL_CALL / 2)  # so that the others still see this process
        return gone or {r: "does not answer, or the process that has the job's store has ended" for r in missing}
    gone = ended(missing)
    with contextlib.suppress(RuntimeError):  # the store may be a thread of this process, and the others still ask it
        store.set(f"told {name} {me}", "")
        _all_answer(store, f"told {name}", [r for r in others if r not in missing], ROLL_CALL / 2)
    return {r: gone.get(r, f"did not answer within {ROLL_CALL:.0f} s: it has ended, hangs, or does other work") for r in missing}


@contextlib.contextmanager
def named(group):
    """Around a wait for ranks of a group, or of the group of that name: an error of the transport becomes RankLost, with who
    is gone."""
    import torch.distributed as dist
    if isinstance(group, str):
        group = dist.distributed_c10d._resolve_process_group(group)
    group = group or dist.group.WORLD
    name = group.group_name
    _introduce(os.getpid(), dist.get_rank(), id(dist.distributed_c10d._get_default_store()))
    try:
        yield
        if name not in _identities:
            _learn(name, dist.get_process_group_ranks(group))
    except RuntimeError as failed:
        if isinstance(failed, RankLost) or not (isinstance(failed, dist.DistError) or "gloo" in str(failed)):
            raise  # this rank's own error
        me, members = dist.get_rank(), dist.get_process_group_ranks(group)
        gone = _roll_call(name, members, me)
        if not gone:
            raise
        said = "; ".join(f"rank {r} {why}" for r, why in sorted(gone.items()))
        raise RankLost(f"experts over ranks (group {name} of ranks {members}): {said}. Rank {me} was exchanging rows with it: "
                       f"{str(failed).splitlines()[0]}. Its own output says why; start all ranks again from the last checkpoint",
                       sorted(gone)) from failed
