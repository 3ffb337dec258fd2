"""Sums over the parts of a row."""

from __future__ import annotations

import pytest
import torch

from kernel_support import DEVICE, require_kernels

require_kernels()

from esper.kasmina.ops.kernels.sums import add_parts  # noqa: E402


@pytest.mark.parametrize("parts", [1, 2, 7, 64, 300])
@pytest.mark.parametrize("shape", [(1,), (2, 8), (5, 3, 3), (2360,)])
def test_parts_are_summed(parts, shape):
    partial = torch.randn(3, parts, *shape, device=DEVICE)
    expected = partial.double().sum(dim=1).float()
    torch.testing.assert_close(add_parts(partial), expected, rtol=1e-5, atol=1e-5)


def test_a_rows_sums_do_not_depend_on_other_rows():
    partial = torch.randn(9, 130, 2, 8, device=DEVICE)
    alone = torch.cat([add_parts(partial[row : row + 1]) for row in range(9)])
    assert torch.equal(add_parts(partial), alone)


def test_nan_stays_in_its_column():
    partial = torch.ones(2, 40, 70, device=DEVICE)
    partial[1, 33, 69] = torch.nan
    found = add_parts(partial)
    assert found.isnan().nonzero().tolist() == [[1, 69]]
    assert (found[0] == 40).all()
