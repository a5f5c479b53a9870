"""Address: HOST:PORT of a prefill worker."""

from typing import NamedTuple

from ringkv.base.errors import InvalidRequest


class Address(NamedTuple):
    host: str
    port: int

    @classmethod
    def parse(cls, text: str, param: str = "prefill") -> "Address":
        """Raises InvalidRequest, which names `param`."""
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise InvalidRequest(f"{param} is {text!r}; give HOST:PORT, such as 127.0.0.1:7070", param)
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
