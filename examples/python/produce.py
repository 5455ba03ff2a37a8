"""Pays an invoice and says so, in one transaction of psycopg 3.

    python produce.py INVOICE [KEY]

Without a KEY it makes one and prints it. Run it again with that KEY, and nothing
happens twice: that is a caller who tries again because the first answer was lost.
"""

import json
import os
import sys
import uuid

import psycopg
from psycopg.types.json import Jsonb

try:
    from uuid import uuid7  # Python 3.14
except ImportError:
    from uuid6 import uuid7

NAMESPACE = "billing"

ENQUEUE = "SELECT onceward.enqueue(%s, %s, %s, %s, %s, headers => %s)"


def new_key() -> str:
    """The key of a new event: once per event, before the transaction, kept over retries."""
    return f"{NAMESPACE}:{uuid.UUID(bytes=uuid7().bytes)}"


def pay(conn: psycopg.Connection, key: str, invoice: str) -> str:
    """Enqueue comes first. A duplicate says that an earlier try has done all of this."""
    payload = json.dumps({"invoice": invoice}).encode()
    with conn.transaction():  # commits, where conn is in autocommit; else this may be a savepoint
        (result,) = conn.execute(
            ENQUEUE, [key, "invoice", invoice, "InvoicePaid", payload, Jsonb({"tenant": "acme"})]
        ).fetchone()
        if result == "enqueued":
            conn.execute("INSERT INTO payments (invoice) VALUES (%s)", [invoice])
    return result


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    invoice, key = sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else new_key()
    with psycopg.connect(os.environ["PRODUCER_DSN"], autocommit=True) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS payments (invoice text NOT NULL)")
        result = pay(conn, key, invoice)
        print(result, key)  # it is committed


if __name__ == "__main__":
    main()
