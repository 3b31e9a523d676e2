"""A mail server for a test. It prints each mail that it accepts as one line of JSON, and ends with its standard input.

smtp.py HOST PORT [CERTIFICATE KEY USER PASSWORD]: with the optional arguments, STARTTLS and this login are required.
"""

import email
import email.policy
import json
import ssl
import sys

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult


class Handler:
    async def handle_DATA(self, server, session, envelope):
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        record = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "subject": str(mail["subject"]),
            "text": mail.get_content().replace("\r\n", "\n"),
            "tls": session.ssl is not None,
            "user": session.auth_data,
        }
        print(json.dumps(record), flush=True)
        return "250 taken"


host, port, more = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
options = {}
if more:
    certificate, key, user, password = more
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def authenticator(server, session, envelope, mechanism, data):
        is_good = (data.login, data.password) == (user.encode(), password.encode())
        return AuthResult(success=is_good, auth_data=user)

    options = {
        "tls_context": context,
        "require_starttls": True,
        "authenticator": authenticator,
        "auth_required": True,
        "auth_require_tls": True,
    }
controller = Controller(Handler(), hostname=host, port=port, **options)
controller.start()
print("{}", flush=True)
sys.stdin.read()
controller.stop()
