"""What a table's options say to jobs."""

from ebla.model.schema import TableSchema


def is_cdc_enabled(schema: TableSchema) -> bool:
    """Whether the option `cdc` says that changes are captured. Options without an effect are kept as CQL text."""
    text = next((text for name, text in schema.options.others if name == "cdc"), "")
    words = text.lower().replace(" ", "").replace('"', "'")
    return "'enabled':'true'" in words or "'enabled':true" in words
