"""The exception of all requests."""

from typing import Optional


class DqError(Exception):
    """A request was refused, or no answer came.

    code is one of docs/HTTP.md ("Errors"), or one of the client's own: "no_answer" (after all tries there was no
    complete answer, so the change may or may not have happened), "bad_answer" (something that is not dq answered, or
    the answer cannot be read) and "untrusted" (the certificate of the server is not trusted).
    status is the HTTP status, 0 without an answer. field names the wrong field, if there is one.
    """

    def __init__(self, code: str, detail: str, status: int = 0, field: Optional[str] = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.status = status
        self.field = field

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code in ("no_answer", "in_progress") or self.status in (408, 502, 503, 504)
