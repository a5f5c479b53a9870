"""Cell: one cache configuration of an evaluation: a policy with its settings, and a budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import parameters
from ringkv.plan.kv_settings import PER_REQUEST
from ringkv.plan.units import parse_ratio

FULL = "full"
LABEL_START = ("policy", "budget")
# Answers are stored under labels, so the order must not change.
LABELLED = [str(setting.field) for setting in PER_REQUEST.values() if setting.field not in LABEL_START]

NEWER = ("heads", "review")  # what older answers had is still the default


@dataclass(frozen=True)
class Cell:
    """budget: "4x" is a quarter of each prompt, "1024" is a number of entries; None keeps everything."""

    choice: KVChoice
    budget: str | None = None

    @property
    def label(self) -> str:
        """The policy, its budget, and each setting that differs from its default."""
        defaults = {**parameters(type(self.choice.select)()), **settings_of(KVChoice())}
        changed = [f"{name}={value}" for name, value in settings_of(self.choice).items() if value != defaults[name]]
        return " ".join(filter(None, (self.choice.policy, self.budget, *changed)))

    def entries(self, prompt: int, output: int) -> int:
        """The budget in entries for a prompt of this length; without a budget, the prompt and all its output."""
        if self.budget is None:
            return prompt + output
        return entries(self.budget, prompt)

    def held(self, prompt: int, output: int) -> int:
        """The entries that its slot needs: with arkvale those of every token."""
        return prompt + output if self.choice.policy == "arkvale" else self.entries(prompt, output)

    def of(self, prompt: int, output: int) -> KVChoice:
        """The choice for one prompt, with its budget in entries."""
        return replace(self.choice, budget=self.entries(prompt, output))


def settings_of(choice: KVChoice) -> dict[str, object]:
    """Settings that labels name if they differ from the default, by name."""
    values = {**vars(choice), **parameters(choice.select), "select": choice.select.name}
    return {name: values[name] for name in LABELLED if name in values}


def usual() -> str:
    """The defaults that labels omit, except those of settings that are newer than some journals."""
    return " ".join(f"{name}={value}" for name, value in settings_of(KVChoice()).items() if name not in NEWER)


def policy_of(label: str) -> str:
    """Return a cell's label without its budget."""
    policy, *rest = label.split()
    return " ".join([policy, *rest[1:]])


def budget_of(label: str) -> str:
    """Return the budget in a cell's label; "" for the full cache."""
    return "".join(label.split()[1:2])


def entries(budget: str, prompt: int) -> int:
    """A budget in entries. Raises InvalidRequest if it is neither a ratio such as "4x" nor a number of entries."""
    if budget.isdecimal() and int(budget) > 0:
        return int(budget)
    if not budget.endswith("x"):
        raise InvalidRequest(f"budget {budget!r} is neither a share of the prompt, such as 4x, nor a number of entries")
    return max(1, int(prompt / parse_ratio(budget, "budgets")))


def crossed(policies: Sequence[str], budgets: Sequence[str], settings: KVChoice) -> list[Cell]:
    """Return a cell for each policy and budget. Policy full has no budget; its one cell is first."""
    for budget in budgets:
        entries(budget, 1)  # refuses what is no budget
    full = [Cell(KVChoice(policy=FULL))] if FULL in policies else []
    others = [replace(settings, policy=policy) for policy in policies if policy != FULL]
    return [*full, *(Cell(choice, budget) for budget in budgets for choice in others)]
