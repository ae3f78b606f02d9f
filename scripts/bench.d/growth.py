"""Samples of a running program over time, and how fast each figure grows."""

import csv
import math
import os

import measure


def process_figures(pid):
    """Figures of one process; empty if the process has ended."""
    try:
        figures = measure.memory_kib(pid)
        figures["files"] = len(os.listdir(f"/proc/{pid}/fd"))
        figures["threads"] = len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return {}
    return figures


def file_kib(path):
    try:
        return os.stat(path).st_size / 1024
    except OSError:
        return 0.0


class Samples:
    """One row for each sample: seconds since the start, then named figures. Each row is written to the CSV at
    once."""

    def __init__(self, path, names):
        self.rows = []
        self.names = names
        self.file = open(path, "w", encoding="ascii", newline="")
        self.writer = csv.DictWriter(self.file, ["seconds", *names], restval="")
        self.writer.writeheader()

    def add(self, seconds, figures):
        row = {"seconds": round(seconds, 1), **figures}
        self.rows.append(row)
        self.writer.writerow({name: round(value, 1) for name, value in row.items()})
        self.file.flush()

    def close(self):
        self.file.close()

    def series(self, name, begin):
        """(hours, figure) of every sample after the warm-up that has the figure."""
        return [(row["seconds"] / 3600, row[name]) for row in self.rows if name in row and row["seconds"] >= begin]


def fit(lives):
    """The growth per hour and two standard errors of it, by least squares.

    `lives` is a list of series. A restarted process begins a new series: all of them share one slope, and
    each has a base of its own. Successive samples are correlated, which would make the error look too small:
    n samples with the correlation r between neighbours count as n * (1 - r) / (1 + r)."""
    pairs = []
    for points in lives:
        if len(points) > 2:
            middle_x, middle_y = (sum(values) / len(points) for values in zip(*points))
            pairs.append([(x - middle_x, y - middle_y) for x, y in points])
    flat = [pair for points in pairs for pair in points]
    width = sum(x * x for x, _ in flat)
    free = len(flat) - len(pairs) - 1
    if not width or free < 1:
        return None
    slope = sum(x * y for x, y in flat) / width
    left = [[y - slope * x for x, y in points] for points in pairs]
    squares = sum(value * value for values in left for value in values)
    if not squares:
        return slope, 0.0
    neighbours = sum(a * b for values in left for a, b in zip(values, values[1:]))
    correlation = min(max(neighbours / squares, 0.0), 0.99)
    error = math.sqrt(squares / free / width * (1 + correlation) / (1 - correlation))
    return slope, 2 * error
