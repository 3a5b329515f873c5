"""What a process may open."""

import resource

import pytest

from ebla.model.errors import Refused
from ebla.runtime.process_limits import FILES_PER_LAYER, LAYERS_OPEN_MAX, layers_open_max, raise_open_files


def test_open_layers_follow_the_limit_on_files_and_leave_room_for_other_files() -> None:
    assert [layers_open_max(files) for files in (64, 1_024, 20_000, 1 << 24)] == [2, 32, 625, LAYERS_OPEN_MAX]
    for files in (256, 1_024, 65_536):
        assert layers_open_max(files) * FILES_PER_LAYER <= files * 3 // 4


def test_too_few_files_are_refused_with_what_is_needed() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(Refused, match=f"may open {hard} files and needs {hard + 1}"):
        raise_open_files(hard + 1)
    assert raise_open_files(16) == hard
