import ast
import dataclasses
import inspect
import itertools
from pathlib import Path

import pytest

from blockout.data import DataConfig, DataError


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"data": ""}, "--data must be a name, a path or hf://owner/name, got nothing"),
        ({"holdout": 1.0}, "--holdout must be at least 0 and below 1, got 1.0"),
        ({"holdout": -0.1}, "--holdout must be at least 0 and below 1, got -0.1"),
        ({"test_share": 0.0}, "--test-share must be above 0 and below 1, got 0.0"),
        ({"image_size": 4}, "--image-size must be 8 to 1024, got 4"),
        ({"per_class": 0}, "--per-class must be at least 1, got 0"),
        ({"image_size": 1025}, "--image-size must be 8 to 1024, got 1025"),
        ({"workers": -1}, "--workers must be 0 to 256, got -1"),
        ({"workers": 10**6}, "--workers must be 0 to 256, got 1000000"),
        ({"data_seed": -1}, "--data-seed must be at least 0, got -1"),
    ],
)
def test_a_wrong_value_names_its_flag_and_what_is_expected(wrong: dict, message: str) -> None:
    with pytest.raises(DataError) as caught:
        DataConfig(**wrong)
    assert str(caught.value) == message


def test_the_cache_folder_is_the_flag_then_the_variable_then_the_users_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", "variable")
    monkeypatch.setenv("XDG_CACHE_HOME", "users")
    assert DataConfig(cache=Path("flag")).cache_folder == Path("flag")
    assert DataConfig().cache_folder == Path("variable")
    monkeypatch.delenv("BLOCKOUT_CACHE_DIR")
    assert DataConfig().cache_folder == Path("users/blockout")


def test_every_field_is_followed_by_its_help_text() -> None:
    """Attribute docstrings, as jsonargparse reads them for --help."""
    (cls,) = ast.parse(inspect.getsource(DataConfig)).body
    assert isinstance(cls, ast.ClassDef)
    helped = [
        field.target.id
        for field, text in itertools.pairwise(cls.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
    ]
    assert helped == [field.name for field in dataclasses.fields(DataConfig)]
