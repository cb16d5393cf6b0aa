"""Where the data of a run are from."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Name, digest and draw of a run's data."""

    name: str  # of a path the last part, since results are shared
    sha256: str
    revision: str | None = None  # of a hub id
    draw: str = ""  # how many rows, and the seed

    @property
    def source(self) -> str:
        """The same string means the same data."""
        name = f"{self.name}@{self.revision}" if self.revision else self.name
        return ", ".join(filter(None, (name, self.draw, f"sha256 {self.sha256[:16]}")))

    @property
    def provenance(self) -> dict[str, str | None]:
        """What results.json says of the data: source, revision and digest."""
        return {"source": self.name, "revision": self.revision, "sha256": self.sha256}
