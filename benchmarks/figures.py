"""The figures of a benchmark, and whether they are within their limits."""


class Figures:
    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.missed: list[str] = []

    def note(self, name: str, value: float) -> float:
        self.values[name] = round(value, 4)
        return value

    def at_most(self, name: str, value: float, limit: float) -> str:
        return self._judge(name, value, value <= limit, f"at most {limit:g}")

    def at_least(self, name: str, value: float, limit: float) -> str:
        return self._judge(name, value, value >= limit, f"at least {limit:g}")

    def _judge(self, name: str, value: float, within: bool, limit: str) -> str:
        self.note(name, value)
        if not within:
            self.missed.append(name)
        return f"{limit}{'' if within else ', MISSED'}"
