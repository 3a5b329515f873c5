"""The options of a table: which there are, what values they take, and how CQL writes them. Pure.

Only a few have an effect here. The others are those of Cassandra and Scylla: they are checked as there, stored and
shown, so that a wrong one is found here too.
"""

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ebla.cql.parse.statements import Properties, PropertyValue
from ebla.model.errors import BadConfiguration
from ebla.model.schema import TTL_S_MAX, TableOptions, TombstoneGc

INT_MAX = (1 << 31) - 1
_DIGITS_MAX = 19
_MAPS_SHOWN = {
    "caching": "{'keys': 'ALL', 'rows_per_partition': 'NONE'}",
    "compaction": "{'class': 'LeveledCompactionStrategy'}",
    "compression": "{'sstable_compression': 'LZ4Compressor'}",
    "extensions": "{'name': 'value'}",
    "per_partition_rate_limit": "{'max_reads_per_second': 100}",
    "scylla_encryption_options": "{'name': 'value'}",
    "tablets": "{'min_tablet_count': 16}",
    "tombstone_gc": "{'mode': 'repair'}",
}


# ---- values

ValueTest = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueKind:
    """What an option takes: a test of its text, and the words for an error."""

    test: ValueTest
    words: str


def _number(
    *, least: float | None = None, above: float | None = None, most: float | None = None, whole: bool = True
) -> ValueKind:
    bounds = [
        f"at least {least}" if least is not None else "",
        f"larger than {above}" if above is not None else "",
        f"at most {most}" if most is not None else "",
    ]
    form = re.compile(r"[+-]?\d{1,19}" if whole else r"[+-]?(\d{1,19}(\.\d{0,99})?|\.\d{1,99})([eE][+-]?\d{1,3})?")

    def test(text: str) -> bool:
        if not form.fullmatch(text):
            return False
        number = float(text)
        return not (
            (least is not None and number < least)
            or (above is not None and number <= above)
            or (most is not None and number > most)
        )

    words = " and ".join(bound for bound in bounds if bound)
    if least is not None and most is not None:
        words = f"between {least} and {most}"
    return ValueKind(test=test, words=f"{'a whole number' if whole else 'a number'} {words}".strip())


def _one_of(*words: str) -> ValueKind:
    return ValueKind(test=lambda text: text.upper() in words, words=" or ".join(words))


_BOOLEAN = _one_of("TRUE", "FALSE")
_ANY = ValueKind(test=lambda _text: True, words="a string")
_COUNT = _number(least=0, most=INT_MAX)
_FROM_1 = _number(least=1, most=INT_MAX)
_PROBABILITY = _number(least=0, most=1, whole=False)
_POSITIVE = _number(above=0, whole=False)


def _is_retry(text: str) -> bool:
    """NONE, ALWAYS, a percentile, milliseconds, or the lesser or greater of two of these."""
    pair = re.fullmatch(r"(?:MIN|MAX)\(([^,()]+),([^,()]+)\)", text, re.IGNORECASE)
    if pair is not None:
        return all(_is_plain_retry(part.strip()) for part in pair.groups())
    return text.upper() in ("NONE", "ALWAYS") or _is_plain_retry(text)


def _is_plain_retry(text: str) -> bool:
    found = re.fullmatch(r"(\d{1,19}(?:\.\d{1,19})?)(P|PERCENTILE|MS)", text, re.IGNORECASE)
    return found is not None and (found[2].upper() == "MS" or float(found[1]) <= 100)


_RETRY = ValueKind(test=_is_retry, words="NONE, ALWAYS, a percentile such as 99PERCENTILE, or a time such as 50ms")


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _is_power_of_two(text: str) -> bool:
    return _FROM_1.test(text) and int(text).bit_count() == 1


# ---- classes of compaction and compression

_COMPACTION = {
    "class": _ANY,
    "enabled": _BOOLEAN,
    "log_all": _BOOLEAN,
    "only_purge_repaired_tombstones": _BOOLEAN,
    "provide_overlapping_tombstones": _one_of("NONE", "ROW", "CELL"),
    "tombstone_compaction_interval": _FROM_1,
    "tombstone_threshold": _PROBABILITY,
    "unchecked_tombstone_compaction": _BOOLEAN,
    "min_threshold": _number(least=2, most=INT_MAX),
    "max_threshold": _number(least=2, most=INT_MAX),
}
_SIZE_TIERED = {
    **_COMPACTION,
    "bucket_high": _POSITIVE,
    "bucket_low": _POSITIVE,
    "cold_reads_to_omit": _PROBABILITY,
    "min_sstable_size": _number(least=0),
}
_UNIT = _one_of("MINUTES", "HOURS", "DAYS")
_RESOLUTION = _one_of("DAYS", "HOURS", "MINUTES", "SECONDS", "MILLISECONDS", "MICROSECONDS", "NANOSECONDS")
COMPACTION_CLASSES: dict[str, dict[str, ValueKind]] = {
    "SizeTieredCompactionStrategy": _SIZE_TIERED,
    "LeveledCompactionStrategy": {
        **_COMPACTION,
        "fanout_size": _FROM_1,
        "single_sstable_uplevel": _BOOLEAN,
        "sstable_size_in_mb": _FROM_1,
    },
    "TimeWindowCompactionStrategy": {
        **_SIZE_TIERED,
        "compaction_window_size": _FROM_1,
        "compaction_window_unit": _UNIT,
        "expired_sstable_check_frequency_seconds": _COUNT,
        "split_during_flush": _BOOLEAN,
        "timestamp_resolution": _RESOLUTION,
        "unsafe_aggressive_sstable_expiration": _BOOLEAN,
    },
    "IncrementalCompactionStrategy": {
        **_SIZE_TIERED,
        "space_amplification_goal": _number(above=1, most=2, whole=False),
        "sstable_size_in_mb": _FROM_1,
    },
    "UnifiedCompactionStrategy": {
        **_COMPACTION,
        "base_shard_count": _FROM_1,
        "expired_sstable_check_frequency_seconds": _COUNT,
        "flush_size_override": _ANY,
        "max_sstables_to_compact": _COUNT,
        "min_sstable_size": _ANY,
        "overlap_inclusion_method": _one_of("NONE", "SINGLE", "TRANSITIVE"),
        "scaling_parameters": _ANY,
        "sstable_growth": _PROBABILITY,
        "target_sstable_size": _ANY,
        "unsafe_aggressive_sstable_expiration": _BOOLEAN,
    },
}
"""The keys of each class."""

_COMPRESSORS = frozenset(
    f"{name}Compressor" for name in ("LZ4", "Snappy", "Deflate", "Zstd", "Noop", "LZ4WithDicts", "ZstdWithDicts")
)
_CHUNK = ValueKind(test=_is_power_of_two, words="a power of two, at least 1")
_COMPRESSION = {
    "class": _ANY,
    "sstable_compression": _ANY,
    "chunk_length_in_kb": _CHUNK,
    "chunk_length_kb": _CHUNK,
    "compression_level": _number(least=-(1 << 17), most=22),
    "crc_check_chance": _PROBABILITY,
    "enabled": _BOOLEAN,
    "lz4_compressor_type": _one_of("FAST", "HIGH"),
    "lz4_high_compressor_level": _number(least=1, most=17),
    "max_compressed_length": _COUNT,
    "min_compress_ratio": _number(least=0, whole=False),
}


def _bare_class(text: str) -> str:
    """Without its Java package."""
    return text.rsplit(".", 1)[-1]


def _check_compaction(options: Mapping[str, str]) -> None:
    name = options.get("class")
    if name is None:
        raise BadConfiguration("Missing sub-option 'class' for the 'compaction' option.")
    keys = COMPACTION_CLASSES.get(_bare_class(name))
    if keys is None:
        raise BadConfiguration(
            f"Unable to find compaction strategy class '{name}'", advice=f"it is one of {', '.join(COMPACTION_CLASSES)}"
        )
    _check_entries("compaction", options, keys)
    low, high = float(options.get("bucket_low", "0.5")), float(options.get("bucket_high", "1.5"))
    if "bucket_low" in keys and low >= high:
        raise BadConfiguration(f"compaction: bucket_low ({low:g}) must be less than bucket_high ({high:g})")
    least, most = int(options.get("min_threshold", "4")), int(options.get("max_threshold", "32"))
    if least > most:
        raise BadConfiguration(f"compaction: min_threshold ({least}) must not be above max_threshold ({most})")


def _check_compression(options: Mapping[str, str]) -> None:
    _check_entries("compression", options, _COMPRESSION)
    name = options.get("sstable_compression", options.get("class"))
    if name is None and options and options.get("enabled", "true").lower() == "true":
        raise BadConfiguration("Missing sub-option 'sstable_compression' for the 'compression' option.")
    if name and _bare_class(name) not in _COMPRESSORS:
        raise BadConfiguration(
            f"Could not create compression of class '{name}'", advice=f"it is one of {', '.join(sorted(_COMPRESSORS))}"
        )


def _check_entries(name: str, options: Mapping[str, str], keys: Mapping[str, ValueKind]) -> None:
    for key, text in options.items():
        kind = keys.get(key)
        if kind is None:
            raise BadConfiguration(f"Unknown {name} option '{key}'", advice=f"known are {', '.join(sorted(keys))}")
        if not kind.test(text):
            raise BadConfiguration(f"Invalid value '{text}' for {name} option '{key}': it must be {kind.words}")


# ---- the table of options

_ROWS = ValueKind(test=lambda text: text.upper() in ("ALL", "NONE") or _COUNT.test(text), words="ALL, NONE or a number")
_MAPS: dict[str, dict[str, ValueKind]] = {
    "caching": {"keys": _one_of("ALL", "NONE"), "rows_per_partition": _ROWS, "enabled": _BOOLEAN},
    "cdc": {
        "delta": _one_of("KEYS", "FULL"),
        "enabled": _BOOLEAN,
        "postimage": _BOOLEAN,
        "preimage": _one_of("TRUE", "FALSE", "FULL"),
        "ttl": _COUNT,
    },
    "per_partition_rate_limit": {"max_reads_per_second": _COUNT, "max_writes_per_second": _COUNT},
    "tablets": {
        "expected_data_size_in_gb": _COUNT,
        "max_tablet_count": _COUNT,
        "min_per_shard_tablet_count": _number(least=0, whole=False),
        "min_tablet_count": _COUNT,
    },
    "tombstone_gc": {
        "mode": ValueKind(test=lambda text: text in list(TombstoneGc), words=" or ".join(TombstoneGc)),
        "propagation_delay_in_seconds": _COUNT,
    },
}
"""Options that are maps with a fixed set of keys."""
_CLASS_MAPS = {"compaction": _check_compaction, "compression": _check_compression}
_FREE_MAPS = ("extensions", "scylla_encryption_options")
_VALUES: dict[str, ValueKind] = {
    "additional_write_policy": _RETRY,
    "allow_auto_snapshot": _BOOLEAN,
    "bloom_filter_fp_chance": _number(above=6.71e-05, most=1.0, whole=False),
    "cdc": _BOOLEAN,
    "comment": _ANY,
    "crc_check_chance": _PROBABILITY,
    "dclocal_read_repair_chance": _PROBABILITY,
    "default_time_to_live": _number(least=0, most=TTL_S_MAX),
    "gc_grace_seconds": _COUNT,
    "id": ValueKind(test=_is_uuid, words="a uuid"),
    "in_memory": _BOOLEAN,
    "incremental_backups": _BOOLEAN,
    "max_index_interval": _FROM_1,
    "memtable": _ANY,
    "memtable_flush_period_in_ms": _COUNT,
    "min_index_interval": _FROM_1,
    "paxos_grace_seconds": _COUNT,
    "read_repair": _one_of("BLOCKING", "NONE"),
    "read_repair_chance": _PROBABILITY,
    "speculative_retry": _RETRY,
    "synchronous_updates": _BOOLEAN,
}
ACCEPTED_OPTIONS = tuple(sorted({*_MAPS, *_CLASS_MAPS, *_FREE_MAPS, *_VALUES}))


def check_option(name: str, value: PropertyValue) -> None:
    """Raises `BadConfiguration` for an unknown option, and for a value that it does not take."""
    if name not in ACCEPTED_OPTIONS:
        raise BadConfiguration(f"Unknown property '{name}'")
    if isinstance(value, str):
        kind = _VALUES.get(name)
        if kind is None:
            raise BadConfiguration(f"Invalid value for property '{name}': it is a map such as {_MAPS_SHOWN[name]}")
        if not kind.test(value):
            raise BadConfiguration(f"Invalid value '{value}' for property '{name}': it must be {kind.words}")
    elif name in _MAPS:
        _check_entries(name, value, _MAPS[name])
    elif name in _CLASS_MAPS:
        _CLASS_MAPS[name](value)
    elif name not in _FREE_MAPS:
        raise BadConfiguration(f"Invalid value for property '{name}': it must be {_VALUES[name].words}, not a map")


@dataclass(frozen=True, slots=True)
class NewOptions:
    options: TableOptions
    min_tablets: int
    """What the statement asks for; 0: nothing."""


def table_options(properties: Properties, before: TableOptions, *, on_tablets: bool) -> NewOptions:
    """The options after a statement."""
    changes: dict[str, Any] = {}
    others = dict(before.others)
    min_tablets = 0
    for name, value in properties.items:
        check_option(name, value)
        match name, value:
            case "comment", str(text):
                changes["comment"] = text
            case "default_time_to_live", str(text):
                changes["default_ttl_s"] = int(text)
            case "gc_grace_seconds", str(text):
                changes["gc_grace_s"] = int(text)
            case "tombstone_gc", dict(entries):
                changes |= _tombstone_gc(entries)
            case "tablets", dict(entries):
                if not on_tablets:
                    raise BadConfiguration("tablets cannot be configured for a table of a keyspace without tablets")
                min_tablets = int(entries.get("min_tablet_count", "0"))
                others[name] = as_cql(entries)
            case "speculative_retry", str(text):
                others[name] = as_cql(text.upper())
            case _:
                others[name] = as_cql(value)
    _check_intervals(others)
    return NewOptions(msgspec.structs.replace(before, **changes, others=tuple(sorted(others.items()))), min_tablets)


def _tombstone_gc(entries: Mapping[str, str]) -> dict[str, Any]:
    if "mode" not in entries:
        raise BadConfiguration("Missing sub-option 'mode' for the 'tombstone_gc' option")
    delay_s = entries.get("propagation_delay_in_seconds", TableOptions().propagation_s)
    return {"tombstone_gc": TombstoneGc(entries["mode"]), "propagation_s": int(delay_s)}


def _check_intervals(options: Mapping[str, str]) -> None:
    least, most = int(options.get("min_index_interval", "128")), int(options.get("max_index_interval", "2048"))
    if least > most:
        raise BadConfiguration(f"max_index_interval must be at least min_index_interval ({least}), got {most}")


# ---- as CQL writes them


def as_cql(value: PropertyValue) -> str:
    """An option in CQL syntax."""
    if isinstance(value, str):
        return value if _is_bare(value) else quote_text(value)
    return "{" + ", ".join(f"{quote_text(key)}: {quote_text(text)}" for key, text in value.items()) + "}"


def _is_bare(text: str) -> bool:
    plain = text.removeprefix("-").replace(".", "", 1)
    return is_number(plain) or text.lower() in ("true", "false")


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
