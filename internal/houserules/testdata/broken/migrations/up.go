package migrations

const lock = "SELECT pg_advisory_lock(1)"
