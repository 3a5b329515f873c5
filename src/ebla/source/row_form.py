"""How rows of a write become rows of its table, by what its user gave and what the nodes answered."""

from ebla.source.encode_rows import RowForm
from ebla.source.typed_columns import WriteRules
from ebla.source.write_options import Nulls, Timestamps, WriteOptions
from ebla.storage.load_columns import Stamp
from ebla.wire.table_access import WritePlan


def row_form(options: WriteOptions, plan: WritePlan) -> RowForm:
    """All times follow from the job's timestamp, so that a job that is run again writes the very same."""
    schema = plan.schema
    ttl_s = schema.options.default_ttl_s if options.ttl_s is None else options.ttl_s
    stamp = Stamp(plan.timestamp_us, plan.timestamp_us // 1_000_000, options.nulls is Nulls.DELETE, ttl_s)
    rules = WriteRules(options.timestamps is Timestamps.CUT)
    return RowForm(schema, stamp, options.ttl_column, options.op_column, rules)
