"""RotationChoice: how a checkpoint is rotated and quantised. No torch."""

from dataclasses import dataclass

from ringkv.base.errors import InvalidRequest

BITS = {"bf16": 16, "int8": 8, "int4": 4}
ROW = "row"
GROUP = 32  # elements that share a scale in the kernels' 4 bits


@dataclass(frozen=True)
class RotationChoice:
    """weights: "bf16" only rotates. group: 32 or "row"; 8 bits have one scale per row.

    seed: of the random signs of the rotation.
    """

    weights: str = "int4"
    group: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InvalidRequest for a value that is unknown."""
        if self.weights not in BITS:
            raise InvalidRequest(f"weights is {self.weights!r}; choose one of {', '.join(BITS)}", "weights")
        groups = (str(GROUP), ROW) if self.weights == "int4" else (ROW,)
        if self.group is not None and self.group not in groups:
            raise InvalidRequest(
                f"group is {self.group!r}; with weights {self.weights} choose {' or '.join(groups)}", "group"
            )

    @property
    def bits(self) -> int:
        return BITS[self.weights]

    @property
    def group_size(self) -> int | None:
        """Elements that share a scale; None for a row."""
        return GROUP if self.weights == "int4" and self.group != ROW else None
