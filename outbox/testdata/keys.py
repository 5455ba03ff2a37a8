"""Checks keys.json with nothing but docs/contract.md and Python's standard library.

Usage: python3 keys.py keys.json. Exits 1 and says what differs. It shares no code
with the Go package on purpose: it is the proof that the algorithm in the contract
is precise enough for another language.
"""

import hashlib
import json
import re
import sys

KEY = re.compile(r"[a-z][a-z0-9._-]{0,62}\Z")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
FIRST = 1420070400000  # 2015-01-01T00:00:00Z


def hashed_key(layout, namespace, at_ms, parts):
    message = b""
    for text in [layout, namespace, *parts]:
        data = text.encode("utf-8")
        message += len(data).to_bytes(8, "big") + data
    raw = bytearray(at_ms.to_bytes(6, "big") + hashlib.sha256(message).digest()[:10])
    raw[6] = raw[6] & 0x0F | 0x80
    raw[8] = raw[8] & 0x3F | 0x80
    h = raw.hex()
    return f"{namespace}:{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def broken_rule(key, now_ms, skew_ms):
    """The first rule that the key breaks, or None."""
    namespace, colon, uuid = key.partition(":")
    if not colon:
        return "separator"
    if not KEY.match(namespace):
        return "namespace"
    if not UUID.match(uuid):
        return "uuid"
    raw = bytes.fromhex(uuid.replace("-", ""))
    if raw[8] >> 6 != 0b10:
        return "variant"
    if raw[6] >> 4 not in (7, 8):
        return "version"
    at_ms = int.from_bytes(raw[:6], "big")
    if at_ms < FIRST:
        return "past"
    if at_ms > now_ms + skew_ms:
        return "future"
    return None


def main(path):
    with open(path, encoding="utf-8") as f:
        vectors = json.load(f)
    cases = []
    for v in vectors["derived"]:
        cases.append((v, v["key"], hashed_key("onceward.derived.1", v["namespace"], v["at_ms"], v["parts"])))
    for v in vectors["external"]:
        cases.append((v, v["key"], hashed_key("onceward.external.1", v["namespace"], v["occurred_at_ms"], [v["external_id"]])))
    parse = vectors["parse"]
    for v in parse["bad"]:
        cases.append((v, v["rule"], broken_rule(v["input"], parse["now_ms"], parse["skew_ms"])))
    for key in parse["good"]:
        cases.append((key, None, broken_rule(key, parse["now_ms"], parse["skew_ms"])))
    wrong = [c for c in cases if c[1] != c[2]]
    for case, want, got in wrong:
        print(f"{case}: want {want}, got {got}", file=sys.stderr)
    print(f"{len(cases)} vectors checked")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
