"""Words that do not belong in the repository."""

import re
from collections.abc import Iterable

from tests.tidy.source import Source

POSTPONED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

MACHINE_PATH = re.compile(r"(?<![\w.$}~-])/(work|root|home|Users)/")

REGISTRY = re.compile(
    r"--(extra-)?index-url|--find-links|--trusted-host|\bPIP_INDEX|\bUV_INDEX"
    r"|https?://[^\s\"']*(pypi|npmjs|registry|nexus|mirror|artifactory|jfrog|proxy|pythonhosted|/simple\b)"
    r"|://[^\s/@\"']+:[^\s/@\"']+@",
    re.IGNORECASE,
)

HOW_IT_IS_WRITTEN = re.compile(
    r"\b(chat-?gpt|gpt-\d|openai|anthropic|claude|copilot|llms?|language models?|sub-?agents?|coding agents?"
    r"|assistants?|artificial intelligence|co-authored-by|as instructed|the brief)\b"
    r"|\b(?-i:AI)\b|\bissues? #?\d{1,2}\b",
    re.IGNORECASE,
)

IGNORE = re.compile(r"#\s*(type:\s*ignore|noqa)(?P<code>[^#\n]*)(?P<reason>#.*)?$")


def postponed_work(sources: Iterable[Source]) -> list[str]:
    """Work that is noted for later is never done, and until then no one knows whether the code is right. Do it, or say
    what is missing in the documentation for users."""
    return _found(sources, POSTPONED, "postponed work")


def machine_paths(sources: Iterable[Source]) -> list[str]:
    """A path of one machine does not exist on others."""
    return _found(sources, MACHINE_PATH, "a path of one machine")


def registry_hosts(sources: Iterable[Source]) -> list[str]:
    """The person who installs chooses the package index; a host in the repository is wrong elsewhere."""
    return _found(sources, REGISTRY, "where packages come from")


def talk_about_writing(sources: Iterable[Source]) -> list[str]:
    """Text is about the product, not about who wrote it or where its tasks are tracked."""
    return _found(sources, HOW_IT_IS_WRITTEN, "about the writing, not the product")


def bare_ignores(sources: Iterable[Source]) -> list[str]:
    """An ignore comment names its code and its reason: `# type: ignore[code]  # reason`, and likewise `# noqa: CODE`.
    Otherwise the next reader can neither trust nor remove it."""
    complaints = []
    for source in sources:
        if not source.is_python:
            continue
        for number, line in enumerate(source.text.splitlines(), start=1):
            found = IGNORE.search(line)
            if found and not (re.search(r"[\[:]\s*[a-zA-Z]", found["code"]) and found["reason"]):
                complaints.append(source.complaint(number, "an ignore without its code or reason"))
    return complaints


def _found(sources: Iterable[Source], pattern: re.Pattern[str], what: str) -> list[str]:
    complaints = []
    for source in sources:
        for number, line in enumerate(source.text.splitlines(), start=1):
            if found := pattern.search(line):
                complaints.append(source.complaint(number, f"{what}: {found.group(0).strip()}"))
    return complaints


RULES = (postponed_work, machine_paths, registry_hosts, talk_about_writing, bare_ignores)
"""Run on every file except the house rules, which must name what they ban."""
