"""Common parts of all benchmark reports: the machine, the commit, tables, and writing the report to its
document."""

import os
import platform
import subprocess

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))


def machine():
    return f"{os.cpu_count()} cores ({processor()}), {memory_gib()} GiB, Linux {platform.release()}"


def commit():
    ask = lambda *words: subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False).stdout.strip()
    changed = " with changes" if ask("status", "--porcelain", "--", "crates", "scripts", "Cargo.lock") else ""
    return f"{ask('rev-parse', '--short', 'HEAD')}{changed}"


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory_gib():
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)


def loads(before, after):
    before, after = [" ".join(f"{load:.2f}" for load in loads) for loads in (before, after)]
    return f"{before} before, {after} after"


def table(rows):
    """An aligned Markdown table. The first row is the header; all columns but the first are numbers."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for number, row in enumerate(rows):
        first, *rest = [text.ljust(width) if place == 0 else text.rjust(width)
                        for place, (text, width) in enumerate(zip(row, widths))]
        yield "| " + " | ".join([first, *rest]) + " |"
        if number == 0:
            yield "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"


def record(name, report, script=None):
    """Writes the report into docs/bench/NAME.md, between its markers."""
    begin, end = f"<!-- written by {script or f'scripts/bench {name}'} --record: begin -->", "<!-- end -->"
    document = os.path.join(ROOT, "docs", "bench", f"{name}.md")
    with open(document, encoding="utf-8") as file:
        text = file.read()
    head, rest = text.split(begin, 1)
    _, tail = rest.split(end, 1)
    with open(document, "w", encoding="utf-8") as file:
        file.write(f"{head}{begin}\n\n{report}\n\n{end}{tail}")
    print(f"\nwritten to {os.path.relpath(document, ROOT)}")
