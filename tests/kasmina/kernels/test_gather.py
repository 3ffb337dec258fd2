"""Parameters of rows and their gradients, against indexing."""

from __future__ import annotations

import pytest
import torch

from kernel_support import DEVICE, require_kernels

require_kernels()

from esper.kasmina.ops.kernels.gather import gather_rows, scatter_rows  # noqa: E402

CASES = {
    "few": (6, [3, 0, 5], [False, True, False], 70),
    "one row": (3, [2], [False], 5),
    "a member twice": (4, [1, 3, 1, 0], [False] * 4, 33),
    "many rows": (5, [i % 5 for i in range(130)], [i % 3 == 0 for i in range(130)], 9),
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "_"))
def case(request):
    members, member, frozen, count = CASES[request.param]
    torch.manual_seed(0)
    tensors = torch.tensor(member, device=DEVICE), torch.tensor(frozen, device=DEVICE)
    return members, *tensors, count


def test_rows_are_their_members(case):
    members, member_R, _, count = case
    flat = torch.randn(members, count, device=DEVICE)
    assert torch.equal(gather_rows(flat, member_R), flat[member_R])


def test_gradients_return_to_members_but_for_frozen_rows(case):
    members, member_R, frozen_R, count = case
    grad = torch.randn(len(member_R), count, device=DEVICE)
    grad[frozen_R] = torch.nan  # nobody looks at it
    kept = grad.masked_fill(frozen_R[:, None], 0.0).double()
    expected = kept.new_zeros(members, count).index_add_(0, member_R, kept).float()
    found = scatter_rows(grad, member_R, frozen_R, members)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_rows_of_a_larger_tensor_are_read_where_they_lie():
    grad = torch.randn(3, 40, device=DEVICE)
    member_R = torch.tensor([0, 2, 1], device=DEVICE)
    free_R = torch.zeros(3, dtype=torch.bool, device=DEVICE)
    for part in (grad[:, 7:20], grad[:, ::2]):
        assert torch.equal(scatter_rows(part, member_R, free_R, 3)[member_R], part)


def test_nan_of_a_member_stays_with_it():
    grad = torch.ones(3, 4, device=DEVICE)
    grad[1] = torch.nan
    member_R = torch.tensor([2, 0, 1], device=DEVICE)
    found = scatter_rows(grad, member_R, torch.zeros(3, dtype=torch.bool, device=DEVICE), 3)
    assert found.isnan().any(dim=1).tolist() == [True, False, False]
