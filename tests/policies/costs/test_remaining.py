"""What is left of a budget is a number, however absurd the budget."""

import numpy as np
import pytest
from virtual import search, study

from haltune import Budget
from haltune.policies import EI, Rollout


@pytest.mark.parametrize(
    "policy", [EI(cost="cooled", initial=2), Rollout(initial=2, points=16)], ids=["ei", "rollout"]
)
@pytest.mark.parametrize(("money", "price"), [(1e308, 1e-308), (1e308, 1e-9), (1e-300, 1e300)])
def test_a_budget_of_money_at_an_absurd_price_is_searched_with(policy, money, price):
    found = study(policy, Budget(money=money, price=price, trials=4))
    search(found)
    assert found.outcome.over
    assert len(found.trials) == (
        4 if money > 1 else 1
    )  # the first that costs anything spends the least budget
    assert np.isfinite([t.config["a"] for t in found.trials]).all()
