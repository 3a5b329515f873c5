"""Jobs as text and as JSON."""

from typing import Any
from uuid import UUID

import msgspec

from ebla.cli.figures import duration, format_bytes
from ebla.model.records.jobs import ENDED_STATES, CompareReplicas, JobProgress, JobRecord, JobState


def as_json(value: Any) -> Any:
    """Structs become objects by field name; `kind` is the tag of a tagged struct."""
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


def count_of(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def progress_summary(progress: JobProgress) -> str:
    parts = [progress.step] if progress.step else []
    if progress.bytes_total:
        parts.append(f"{format_bytes(progress.bytes_done)} of {format_bytes(progress.bytes_total)}")
    elif progress.tasks_total:
        parts.append(f"task {progress.tasks_done} of {progress.tasks_total}")
    return ", ".join(parts)


def job_summary(job: JobRecord) -> str:
    """The state of the job, in one line."""
    cancelling = ", cancel requested" if job.cancel_requested and job.state not in ENDED_STATES else ""
    match job.state:
        case JobState.RUNNING:
            progress = progress_summary(job.progress)
            return f"running{cancelling}: {progress}" if progress else f"running{cancelling}"
        case JobState.DONE:
            return f"done: {result_summary(job)}"
        case _:
            return f"{job.state}{cancelling}: {job.cause}" if job.cause else f"{job.state}{cancelling}"


def result_summary(job: JobRecord) -> str:
    result = job.result
    if result is None:
        return "no result"
    took = duration(job.ended_ms - job.started_ms)
    if isinstance(job.spec, CompareReplicas):
        found = count_of(result.differences_total, "difference") if result.differences_total else "no difference"
        healed = f", {count_of(result.healed_rows, 'row')} copied to replicas that lacked them" * bool(
            result.healed_rows
        )
        where = f"{count_of(result.ranges_compared, 'range')}, {count_of(result.rows, 'row')}"
        return f"{found} in {where}{healed}, {took}"
    parts = [format_bytes(result.bytes_moved)]
    parts += [count_of(result.layers, "layer")] if result.layers else []
    parts += [count_of(result.rows, "row")] if result.rows else []
    parts += ["by links on this machine"] if result.short_cut else []
    return f"{', '.join(parts)}, {took}"
