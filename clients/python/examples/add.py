"""Adds jobs, and shows and removes them. DQ_URL and DQ_TOKEN say where dq is."""

# docs: add
from datetime import timedelta

import dq

client = dq.Client()    # DQ_URL, or http://127.0.0.1:8088
client.add("orders", {"order": 42}, id="order-42", delay=timedelta(minutes=30), tags=["shop:7"])
job = client.get("orders", "order-42")
print(job.state if job else "there is no such job")
client.delete("orders", "order-42")

for result in client.add_many("orders", [dq.NewJob({"order": n}, delay="1h") for n in range(3)]):
    print(result.code if isinstance(result, dq.DqError) else result.id)

try:
    client.add("no-such-topic", {})
except dq.DqError as e:
    print(e.code, e.status)    # unknown_topic 404
# docs: end of add
