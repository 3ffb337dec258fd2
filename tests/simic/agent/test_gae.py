"""Advantages and returns in closed form: constant rewards, every kind of end."""

import numpy as np
import pytest

from esper.simic.agent.gae import advantages

T = 12


def run(reward, value, gamma, lam, terminal=(), truncated=(), bootstrap=0.0):
    """Advantages of one member; ends are step numbers, the last step always one."""
    ends = np.zeros((2, T, 1), dtype=bool)
    ends[0, list(terminal)] = True
    ends[1, list(truncated)] = True
    full = np.ones((T, 1))
    arrays = (full * reward, full * value, full * bootstrap, *ends)
    return advantages(*arrays, gamma, lam)[:, 0]


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_lambda_1_gives_the_discounted_return_minus_the_value(gamma):
    found = run(2.0, 0.7, gamma, 1.0, terminal=[T - 1])
    returns = [2.0 * sum(gamma**k for k in range(T - t)) for t in range(T)]
    assert found == pytest.approx(np.array(returns) - 0.7, abs=1e-12)


def test_lambda_0_gives_the_one_step_error():
    found = run(2.0, 0.7, 0.9, 0.0, terminal=[T - 1])
    assert found[:-1] == pytest.approx(2.0 + 0.9 * 0.7 - 0.7, abs=1e-12)
    assert found[-1] == pytest.approx(2.0 - 0.7, abs=1e-12)


def test_constant_rewards_and_values_form_a_geometric_series():
    gamma, lam = 0.95, 0.8
    delta, last = 1.0 + gamma * 3.0 - 3.0, 1.0 - 3.0
    found = run(1.0, 3.0, gamma, lam, terminal=[T - 1])
    q = gamma * lam
    expected = [
        delta * (1 - q ** (T - 1 - t)) / (1 - q) + q ** (T - 1 - t) * last for t in range(T)
    ]
    assert found == pytest.approx(expected, abs=1e-12)


def test_a_truncated_end_goes_on_with_the_bootstrap_value():
    found = run(1.0, 3.0, 0.95, 0.8, truncated=[T - 1], bootstrap=5.0)
    assert found[-1] == pytest.approx(1.0 + 0.95 * 5.0 - 3.0, abs=1e-12)


def test_a_terminal_end_ignores_the_bootstrap_value():
    assert run(1.0, 3.0, 0.95, 0.8, terminal=[T - 1], bootstrap=5.0)[-1] == pytest.approx(-2.0)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_endless_rewards_are_worth_their_infinite_sum_with_bootstrap(lam):
    """V = r / (1 - gamma) explains everything: no advantage anywhere, however short the cut."""
    gamma, worth = 0.9, 1.0 / (1 - 0.9)
    found = run(1.0, worth, gamma, lam, truncated=[3, T - 1], bootstrap=worth)
    assert found == pytest.approx(0.0, abs=1e-12)


def test_without_bootstrap_the_end_looks_like_a_loss():
    gamma, worth = 0.9, 1.0 / (1 - 0.9)
    found = run(1.0, worth, gamma, 1.0, terminal=[T - 1])
    steps_left = T - np.arange(T)
    assert found == pytest.approx(-worth * gamma**steps_left, abs=1e-12)


@pytest.mark.parametrize(("kind", "beyond"), [("terminal", 0.0), ("truncated", 5.0)])
def test_an_end_in_the_middle_is_as_one_at_the_end(kind, beyond):
    """The next step belongs to another episode: its value is not what follows."""
    ends = {"terminal": [T - 1], "truncated": []}
    ends[kind] = [*ends[kind], 4]
    found = run(1.0, 3.0, 0.95, 0.8, **ends, bootstrap=5.0)
    assert found[4] == pytest.approx(1.0 + 0.95 * beyond - 3.0, abs=1e-12)


@pytest.mark.parametrize("kind", ["terminal", "truncated"])
def test_nothing_passes_an_end_in_the_middle(kind):
    """What comes after step 4 does not change what came before it."""
    ends = {"terminal": [T - 1], "truncated": []}
    ends[kind] = [*ends[kind], 4]
    reward = np.ones((T, 1))
    changed = reward.copy()
    changed[5:] = 50.0
    one = run(reward, 0.5, 0.9, 0.9, **ends, bootstrap=0.25)
    two = run(changed, 0.5, 0.9, 0.9, **ends, bootstrap=0.25)
    assert one[:5].tolist() == two[:5].tolist()
    assert abs(one[5] - two[5]) > 1


def test_members_do_not_mix():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(T, 3)) for _ in range(3)]
    ends = [rng.random((T, 3)) < 0.2, np.zeros((T, 3), dtype=bool)]
    ends[0][-1] = True
    together = advantages(*arrays, *ends, 0.97, 0.9)
    alone = advantages(*(a[:, 1:2] for a in (*arrays, *ends)), 0.97, 0.9)
    assert together[:, 1:2].tolist() == alone.tolist()
