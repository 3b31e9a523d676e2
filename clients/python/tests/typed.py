"""Checked only: what the types allow, and what they refuse."""

from typing import List, Optional, Union

import dq

client = dq.Client()
added: dq.Added = client.add("t", {"a": 1}, id="1", delay=3, priority=7, tags=["a"])
results: List[Union[dq.Added, dq.DqError]] = client.add_many("t", [dq.NewJob(1, ttr="1m")])
job: Optional[dq.Job] = client.get("t", added.id)
reserved: List[dq.ReservedJob] = client.reserve(["t"], max=3, wait=1, lease="1m")
id: str = dq.Webhook("a-secret").verify({"webhook-id": "1"}, b"")

client.add("t", 1, dealy=3)  # type: ignore[call-arg]
client.add("t", 1, tags=7)  # type: ignore[arg-type]
job.state  # type: ignore[union-attr]
