"""Cell: one way to keep a prompt that is put to the test: a policy, and how much it may hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import parameters
from ringkv.plan.kv_settings import PER_REQUEST
from ringkv.plan.units import parse_ratio

FULL = "full"
NAMED_APART = ("policy", "budget")  # a label begins with them
# In this order: answers are kept under their labels.
LABELLED = [str(one.field) for one in PER_REQUEST.values() if one.field not in NAMED_APART]


@dataclass(frozen=True)
class Cell:
    """`budget`: "4x" is a quarter of each prompt, "1024" so many entries; None where everything is kept."""

    choice: KVChoice
    budget: str | None = None

    @property
    def label(self) -> str:
        """The policy, its budget, and each setting that is not the usual one."""
        usual = {**parameters(type(self.choice.select)()), **settings_of(KVChoice())}
        unusual = [f"{name}={value}" for name, value in settings_of(self.choice).items() if value != usual[name]]
        return " ".join(filter(None, (self.choice.policy, self.budget, *unusual)))

    def entries(self, prompt: int, output: int) -> int:
        """What a prompt of so many tokens may hold; without a budget, it and all its output."""
        if self.budget is None:
            return prompt + output
        return entries(self.budget, prompt)

    def of(self, prompt: int, output: int) -> KVChoice:
        """The choice for one prompt."""
        return replace(self.choice, budget=self.entries(prompt, output))


def settings_of(choice: KVChoice) -> dict[str, object]:
    """By name, the settings that labels tell if they are not the usual ones."""
    own = {**vars(choice), **parameters(choice.select), "select": choice.select.name}
    return {name: own[name] for name in LABELLED if name in own}


def entries(budget: str, prompt: int) -> int:
    """Raises InvalidRequest for what is neither a ratio, "4x", nor a number of entries."""
    if budget.isdecimal() and int(budget) > 0:
        return int(budget)
    if not budget.endswith("x"):
        raise InvalidRequest(f"budget {budget!r} is neither a share of the prompt, such as 4x, nor a number of entries")
    return max(1, int(prompt / parse_ratio(budget)))


def crossed(policies: Sequence[str], budgets: Sequence[str], settings: KVChoice) -> list[Cell]:
    """Each policy with each budget; full, which keeps everything, once and first."""

    def each() -> Iterator[Cell]:
        if FULL in policies:
            yield Cell(replace(KVChoice(), policy=FULL))
        for budget in budgets:
            entries(budget, 1)
            for policy in policies:
                if policy != FULL:
                    yield Cell(replace(settings, policy=policy), budget)

    return list(each())
