"""Shares: the tokens that each owner was served recently. Old tokens fade by the tokens served since, not by time."""

HALF_LIFE = 1 << 16  # tokens served to all owners after which an older token counts half


class Shares:
    """Prefilled and generated tokens by owner."""

    def __init__(self, half_life: int = HALF_LIFE) -> None:
        self._half_life = half_life
        self._served: dict[str, float] = {}
        self._since = 0  # tokens since they were last halved

    def of(self, owner: str) -> float:
        return self._served.get(owner, 0.0)

    def serve(self, owner: str, tokens: int) -> None:
        self._served[owner] = self.of(owner) + tokens
        self._since += tokens
        while self._since >= self._half_life:
            self._since -= self._half_life
            # Below one token an owner is forgotten, so that owners who left take no memory.
            self._served = {name: served / 2 for name, served in self._served.items() if served >= 2}
