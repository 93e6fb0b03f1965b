"""The database's samples pass through one line of code, in many sizes, which would be taken to change: how a result is
rounded must not depend on which entries ran before. test_bounded_sizes.py asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch_tpu


@pytest.fixture(autouse=True)
def sizes_as_they_are() -> Iterator[None]:
    with torch_tpu.bounded_sizes("off"):
        yield
