"""Where actors run. A runtime makes handles; schedulers and services see nothing else of it."""

from __future__ import annotations

from typing import Any, Protocol


class Handle(Protocol):
    """An actor somewhere."""

    name: str

    async def call(self, method: str, *arguments: Any, returns: int = 0) -> list[Any]:
        """Call a method and wait for its receipt.

        Args:
            method: of the actor; it returns a receipt alone or a tuple (receipt, payload...).
            arguments: plain data, or references that earlier calls returned.
            returns: number of payloads.

        Returns:
            The receipt, then one reference for each payload: the payload itself here, a ticket for it on a cluster.
        """

    def send(self, method: str, *arguments: Any) -> None:
        """Call a method without waiting; an error shows at the next waited call."""
