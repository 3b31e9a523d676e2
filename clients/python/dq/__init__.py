"""A client of dq, the delay queue. docs/CLIENTS.md of dq has the examples.

Client adds, shows and removes jobs, and reserves those of pull topics. work() is a worker for pull topics. Webhook
verifies the callbacks of push topics.
"""

from .client import Client
from .errors import DqError
from .jobs import Added, Job, NewJob, ReservedJob
from .webhook import Webhook, WebhookError
from .worker import work

__all__ = ["Added", "Client", "DqError", "Job", "NewJob", "ReservedJob", "Webhook", "WebhookError", "work"]
