"""The seeded faults of `make faults` stay applicable as the sources change."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from seed_faults import FAULTS  # noqa: E402


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_replaces_something_that_is_there(fault):
    text = (ROOT / "src" / "blockout" / fault.path).read_text()
    assert fault.right in text
    assert text.replace(fault.right, fault.wrong, 1) != text
