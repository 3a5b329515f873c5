"""Jobs as a terminal and as JSON show them."""

from typing import Any
from uuid import UUID

import msgspec

from ebla.cli.status_table import duration
from ebla.wire.jobs import ENDED, Compare, Job, JobState, Progress

UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def as_json(value: Any) -> Any:
    """Structs by the names of their fields; what kind of wish it is by `kind`."""
    match value:
        case msgspec.Struct():
            fields = {name: as_json(getattr(value, name)) for name in value.__struct_fields__}
            tag = value.__struct_config__.tag
            return fields if tag is None else {"kind": tag, **fields}
        case UUID():
            return str(value)
        case tuple() | list():
            return [as_json(each) for each in value]
        case _:
            return value


def size_words(size_bytes: int) -> str:
    for unit, name in UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def progress_words(progress: Progress) -> str:
    parts = [progress.step] if progress.step else []
    if progress.bytes_total:
        parts.append(f"{size_words(progress.bytes_done)} of {size_words(progress.bytes_total)}")
    elif progress.tasks_total:
        parts.append(f"task {progress.tasks_done} of {progress.tasks_total}")
    return ", ".join(parts)


def job_words(job: Job) -> str:
    """How it stands, in one line."""
    asked = ", asked to cancel" if job.cancel_asked and job.state not in ENDED else ""
    match job.state:
        case JobState.RUNNING:
            told = progress_words(job.progress)
            return f"running{asked}: {told}" if told else f"running{asked}"
        case JobState.DONE:
            return f"done: {result_words(job)}"
        case _:
            return f"{job.state}{asked}: {job.cause}" if job.cause else f"{job.state}{asked}"


def result_words(job: Job) -> str:
    result = job.result
    if result is None:
        return "nothing to tell"
    took = duration(job.ended_ms - job.started_ms)
    if isinstance(job.wish, Compare):
        found = counted(result.differences_total, "difference") if result.differences_total else "no difference"
        healed = f", {counted(result.healed_rows, 'row')} brought to where they were missing" * bool(result.healed_rows)
        where = f"{counted(result.ranges_compared, 'range')}, {counted(result.rows, 'row')}"
        return f"{found} in {where}{healed}, {took}"
    parts = [size_words(result.bytes_moved)]
    parts += [counted(result.layers, "layer")] if result.layers else []
    parts += [counted(result.rows, "row")] if result.rows else []
    parts += ["by links on this machine"] if result.short_cut else []
    return f"{', '.join(parts)}, {took}"
