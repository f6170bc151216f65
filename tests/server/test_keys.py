"""API keys: who is let in, and what is kept of a key."""

import hashlib

import pytest

from omnireel.errors import BadSetting, Unauthorized
from omnireel.server.keys import Keys, keys_of

DIGEST = hashlib.sha256(b"hashed").hexdigest()


@pytest.fixture
def keys(tmp_path):
    (tmp_path / "keys").write_text(f"# staff\nin-file\n\nsha256:{DIGEST}\n")
    return keys_of(["first", "second"], tmp_path / "keys")


@pytest.mark.parametrize("key", ["first", "second", "in-file", "hashed"])
def test_every_key_is_let_in_as_its_own_owner(keys, key):
    assert keys.owner(f"Bearer {key}") == keys.owner(f"bearer  {key} ") == hashlib.sha256(key.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "first",
        "Basic first",
        "Bearer",
        "Bearer ",
        "Bearer firs",
        f"Bearer sha256:{DIGEST}",
        f"Bearer {DIGEST}",
        "Bearer # staff",
        "Bearer \udcff",
    ],
)
def test_all_else_is_not(keys, header):
    with pytest.raises(Unauthorized) as caught:
        keys.owner(header)
    assert "firs" not in caught.value.message


def test_without_keys_everybody_is_let_in():
    assert not Keys()
    assert Keys().owner(None) == ""


def test_keys_are_kept_as_digests_only(keys):
    assert "first" not in repr(vars(keys))


@pytest.mark.parametrize("text", ["", "# nobody\n", None])
def test_a_file_without_keys_does_not_let_everybody_in(tmp_path, text):
    if text is not None:
        (tmp_path / "keys").write_text(text)
    with pytest.raises(BadSetting, match="api_key_file"):
        keys_of([], tmp_path / "keys")
