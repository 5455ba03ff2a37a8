-- name: Claim :exec
UPDATE onceward.t SET a = $1, b = b OPERATOR(pg_catalog.+) 1 WHERE a OPERATOR(pg_catalog.=) $1 AND b = $2 AND c IN ('x')
  AND d IS DISTINCT FROM 'y'::text AND e::bigint OPERATOR(pg_catalog.=) ANY('{1}'::pg_catalog.int8[]) RETURNING *;
