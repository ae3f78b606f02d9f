"""Measurements from the kernel: start and exit times of processes, and the resource usage of supervisors."""

import mmap
import os
import select
import signal
import struct
import time

SLOT = struct.Struct("QQ")  # when it began (CLOCK_MONOTONIC, ns), its pid: see helper.c


class TookTooLong(Exception):
    """A supervisor exceeded the time limit."""


class Slots:
    """One slot per supervised process, which that process writes itself."""

    def __init__(self, path, count):
        self.path, self.count = path, count
        with open(path, "wb") as file:
            file.truncate(count * SLOT.size)
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), count * SLOT.size)

    def close(self):
        self.memory.close()
        os.unlink(self.path)

    def read(self, index):
        return SLOT.unpack_from(self.memory, index * SLOT.size)

    def all(self):
        return list(SLOT.iter_unpack(self.memory[:]))

    def clear(self):
        self.memory[:] = bytes(len(self.memory))

    def wait_all(self, patience):
        """Waits until every process has started. Returns the time of the last start."""
        deadline = time.monotonic() + patience
        while True:
            slots = self.all()
            began = sum(1 for _, pid in slots if pid)
            if began == self.count:
                return max(began for began, _ in slots)
            if time.monotonic() > deadline:
                raise TookTooLong(f"{began} of {self.count} ran after {patience} s")
            time.sleep(0.002)

    def wait_next(self, index, old_pid, patience):
        """Waits until another process has written this slot. Returns its start time."""
        deadline = time.monotonic() + patience
        while True:
            began, pid = self.read(index)
            if pid != old_pid:
                return began
            if time.monotonic() > deadline:
                raise TookTooLong(f"process {index} was not back after {patience} s")
            time.sleep(0.0005)


class Exits:
    """Waits for the exits of many processes by pidfd, which also works for children of other processes."""

    def __init__(self, pids):
        self.epoll = select.epoll(len(pids))
        self.open = {}
        for pid in pids:
            pidfd = os.pidfd_open(pid)
            self.open[pidfd] = pid
            self.epoll.register(pidfd, select.EPOLLIN)

    def wait_all(self, patience):
        """Returns the time of the last exit."""
        total = len(self.open)
        deadline = time.monotonic() + patience
        last = time.monotonic_ns()
        while self.open:
            left = deadline - time.monotonic()
            ready = self.epoll.poll(max(left, 0), 256) if left > 0 else []
            if not ready:
                raise TookTooLong(f"{total - len(self.open)} of {total} had ended after {patience} s")
            last = time.monotonic_ns()
            for pidfd, _ in ready:
                self.epoll.unregister(pidfd)
                os.close(pidfd)
                del self.open[pidfd]
        return last

    def close(self):
        for pidfd in self.open:
            os.close(pidfd)
        self.epoll.close()


def kill(pid):
    """Kills the process. Returns the time."""
    at = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    return at


def descendants(root):
    """All processes below this one."""
    below = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rsplit(b")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            below.setdefault(parent, []).append(int(name))
    found, open_ = [], [root]
    while open_:
        children = below.get(open_.pop(), [])
        found += children
        open_ += children
    return found


def program(pid):
    """The file that a process runs; None if it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None


def argv(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def memory_kib(pid):
    """Anonymous, private dirty and proportional memory of a process, in KiB."""
    wanted = {"Anonymous:": "anonymous_kib", "Private_Dirty:": "private_dirty_kib", "Pss:": "pss_kib"}
    found = {}
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            name, value, *_ = line.split()
            if name in wanted:
                found[wanted[name]] = int(value)
    return found


def memory_of_all_kib(pids):
    """The sums of the same figures over several processes."""
    each = [memory_kib(pid) for pid in pids]
    return {name: sum(figures[name] for figures in each) for name in ("anonymous_kib", "private_dirty_kib", "pss_kib")}


def anonymous_kib(pid):
    """Memory that belongs to no file: heap, stacks and changed pages of private mappings."""
    return memory_kib(pid)["anonymous_kib"]


def peak_kib(pid):
    """Peak resident memory, file pages included."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))


def cpu_ns(pids):
    """CPU time of each process with all of its threads (clock_getcpuclockid). /proc/PID/stat has a resolution
    of 10 ms, which is too coarse for a supervisor of many small processes."""
    return sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in pids)


def percentile(values, part):
    """The percentile: the smallest value that is not exceeded by this share of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * part // 100) - 1))]
