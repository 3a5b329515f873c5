"""How rows of a write become rows of its table, by what its user gave and what the nodes answered."""

from ebla.source.arrow_conversion import ConversionRules
from ebla.source.write.encode_rows import RowEncoding
from ebla.source.write.write_options import NullHandling, TimestampPrecision, WriteOptions
from ebla.storage.columns.load_encoding import WriteStamp
from ebla.wire.table_calls import StagingPlan


def row_encoding(options: WriteOptions, plan: StagingPlan) -> RowEncoding:
    """All times follow from the job's timestamp, so that a job that is run again writes the very same."""
    schema = plan.schema
    ttl_s = schema.options.default_ttl_s if options.ttl_s is None else options.ttl_s
    stamp = WriteStamp(
        timestamp_us=plan.timestamp_us,
        at_s=plan.timestamp_us // 1_000_000,
        nulls_delete=options.nulls is NullHandling.DELETE,
        ttl_s=ttl_s,
    )
    rules = ConversionRules(options.timestamps is TimestampPrecision.CUT)
    return RowEncoding(
        schema=schema, stamp=stamp, ttl_column=options.ttl_column, op_column=options.op_column, rules=rules
    )
