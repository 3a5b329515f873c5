"""Which layers of a stack to compact, what the compaction may drop, and whether its result may be swapped in. Pure.

A compaction reads checkpoints in another process while the stack changes. So (b) and (c) of `INV-LAYER-GC`
(`tombstone_gc.py`) are checked twice: when it is planned, and again when it returns, then against what it did drop.
"""

import enum
from collections.abc import Sequence

import msgspec

from ebla.model.rows import NEVER_US
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.storage.compaction.tombstone_gc import KEEP_ALL, GcContext, GcRule, gc_rule
from ebla.storage.layers.layer_facts import ALWAYS_US, LayerFacts
from ebla.storage.manifest import Incarnation, LayerEntry, LayerId

GROWTH_MAX = 4
"""An older base joins a compaction if it is at most this many times as large as all newer inputs together: so each row
is copied a bounded number of times while a stack grows."""


class CompactionInput(msgspec.Struct, frozen=True, array_like=True):
    id: LayerId
    folder: str
    """Of a checkpoint, which nothing else changes or removes."""
    ranges: tuple[TokenRange, ...]
    """Rows outside of them do not belong to the stack."""


class CompactionJob(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Everything a compaction needs to know, in any process."""

    incarnation: Incarnation
    inputs: tuple[CompactionInput, ...]
    output: LayerId
    output_folder: str
    range: TokenRange
    rule: GcRule
    schema: TableSchema
    scratch_folder: str = ""
    """Holds the checkpoints; removed when the compaction ends."""
    kept: tuple[TokenRange, ...] | None = None
    """Rows outside of these ranges are dropped. They ascend. None: rows of the whole range are kept."""


class CompactionResult(msgspec.Struct, frozen=True, array_like=True):
    facts: LayerFacts
    dropped_greatest_us: int = NEVER_US
    """The newest timestamp among the tombstones and expired cells that were dropped."""


class SwapOutcome(enum.Enum):
    SWAPPED = "swapped"
    INPUTS_GONE = "inputs gone"
    """They were dropped, compacted by another job, or quarantined meanwhile."""
    OLDER_CELLS = "older cells arrived"
    """A layer that it did not read now has something older than what it dropped."""
    HELD = "held"
    """It dropped tombstones, and a transition or a staging began meanwhile."""


def choose_inputs(bases: Sequence[LayerEntry], bases_max: int) -> tuple[LayerId, ...]:
    """The bases to compact, oldest first; empty: none. A stack with a damaged layer is not compacted."""
    if any(layer.damage for layer in bases) or len(bases) <= bases_max:
        return ()
    chosen = [bases[-1], bases[-2]]
    total_bytes = sum(layer.size_bytes for layer in chosen)
    for base in reversed(bases[:-2]):
        # Regardless of size, enough bases join to bring the stack back under its bound.
        if base.size_bytes > total_bytes * GROWTH_MAX and len(bases) - len(chosen) + 1 <= bases_max:
            break
        chosen.append(base)
        total_bytes += base.size_bytes
    return tuple(layer.id for layer in reversed(chosen))


def least_outside_us(layers: Sequence[LayerEntry], inputs: Sequence[LayerId]) -> int:
    """(b): the least timestamp of the layers that overlap the inputs and are not among them."""
    ranges = [layer.range for layer in layers if layer.id in inputs]
    outside = [
        layer.facts.least_us
        for layer in layers
        if layer.id not in inputs and any(layer.range.overlaps(one) for one in ranges)
    ]
    return min(outside, default=ALWAYS_US)


def plan_gc_rule(
    layers: Sequence[LayerEntry], inputs: Sequence[LayerId], schema: TableSchema, terms: GcContext, *, held: bool
) -> GcRule:
    if held:
        return KEEP_ALL
    token_ranges = [layer.range for layer in layers if layer.id in inputs]
    rules = [gc_rule(schema.options, terms, one, least_outside_us(layers, inputs)) for one in token_ranges]
    spans = dict.fromkeys(span for rule in rules for span in rule.spans)
    return GcRule(tuple(spans), least_outside_us(layers, inputs)) if spans else KEEP_ALL


def check_result(
    layers: Sequence[LayerEntry], job: CompactionJob, result: CompactionResult, *, held: bool
) -> SwapOutcome:
    """Whether the result may replace its inputs, as the stack is now: the second check of `INV-LAYER-GC`."""
    inputs = [one.id for one in job.inputs]
    usable = [layer.id for layer in layers if not layer.damage]
    if any(one not in usable for one in inputs):
        return SwapOutcome.INPUTS_GONE
    if result.dropped_greatest_us == NEVER_US:
        return SwapOutcome.SWAPPED
    if held:
        return SwapOutcome.HELD
    if result.dropped_greatest_us >= least_outside_us(layers, inputs):
        return SwapOutcome.OLDER_CELLS
    return SwapOutcome.SWAPPED
