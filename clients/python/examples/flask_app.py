"""A receiver of callbacks: flask --app flask_app run"""

# docs: receive
import os

import dq
from flask import Flask, request

app = Flask(__name__)
# DQ_WEBHOOK_SECRETS has the secret; during a rotation, it has the new secret, a comma and the old secret.
secrets = os.environ.get("DQ_WEBHOOK_SECRETS")
if not secrets:
    raise RuntimeError("DQ_WEBHOOK_SECRETS is not set")
webhook = dq.Webhook(*secrets.split(","))
seen: set[str] = set()    # in real life: a unique key in the database, written together with the effects of the job


@app.post("/hook")
def hook() -> tuple[str, int]:
    try:
        webhook_id = webhook.verify(request.headers, request.get_data())
    except dq.WebhookError as e:
        return str(e), 401
    if webhook_id not in seen:
        print("job", request.headers["dq-job-id"], request.get_json())
        seen.add(webhook_id)
    return "", 204
# docs: end of receive
