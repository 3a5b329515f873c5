"""Which processes control starts, and how."""

from pathlib import Path

from ebla.node.control import StartArguments, child_commands
from ebla.options import NodeOptions, PipelineOptions

START = StartArguments(Path("/etc/options.toml"), ("limits.stop_ms=900",), None)


def test_every_child_is_told_the_options_that_control_was() -> None:
    commands = child_commands(NodeOptions(data="d", shards=2), START)
    assert [command.name for command in commands] == ["shard-0", "shard-1", "bulk", "pipeline"]
    for command in commands:
        arguments_text = " ".join(command.arguments)
        assert "--options /etc/options.toml --set limits.stop_ms=900" in arguments_text
    assert [command.name for command in commands if command.optional] == ["pipeline"]


def test_a_node_whose_pipeline_is_off_never_has_one() -> None:
    commands = child_commands(NodeOptions(data="d", pipeline=PipelineOptions(enabled=False)), START)
    assert [command.name for command in commands] == ["shard-0", "bulk"]
