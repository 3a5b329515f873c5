"""What is found before a node starts anything."""

from pathlib import Path

import pytest

from ebla.cql.authentication import hash_password
from ebla.model.errors import InvalidRequest, Refused
from ebla.options import load
from ebla.runtime.preflight import check_credentials
from ebla.runtime.system_rng import SystemRng


def options_file(folder: Path, text: str, mode: int) -> Path:
    path = folder / "options.toml"
    path.write_text(f'data = "."\n{text}')
    path.chmod(mode)
    return path


def test_an_options_file_with_a_password_hash_is_for_its_owner_only(tmp_path: Path) -> None:
    text = f'authenticator = "password"\nsuperuser_password_hash = "{hash_password("clay", SystemRng())}"\n'
    path = options_file(tmp_path, text, 0o640)
    with pytest.raises(Refused, match="mode 640") as refused:
        check_credentials(load(path), path)
    assert refused.value.advice == f"chmod 600 {path}"
    path.chmod(0o600)
    check_credentials(load(path), path)


def test_a_hash_that_is_not_in_the_file_does_not_make_it_secret(tmp_path: Path) -> None:
    path = options_file(tmp_path, "shards = 1\n", 0o644)
    flags = ["authenticator=password", f"superuser_password_hash={hash_password('clay', SystemRng())}"]
    check_credentials(load(path, flags), path)
    check_credentials(load(path), path)


def test_a_hash_that_no_login_could_be_checked_with_is_found_before_the_start(tmp_path: Path) -> None:
    text = 'authenticator = "password"\nsuperuser_password_hash = "scrypt$999999999$8$1$AAAA$BBBB"\n'
    path = options_file(tmp_path, text, 0o600)
    with pytest.raises(InvalidRequest, match="hash-password"):
        check_credentials(load(path), path)
