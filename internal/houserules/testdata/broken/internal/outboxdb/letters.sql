-- name: Waiting :many
-- Waiting is pinned: its operators are safe, and the seed is an integer (count(*) here is none).
SELECT pg_catalog.count(*) FILTER (WHERE true), COALESCE(pg_catalog.max(x), 0) FROM onceward.t (a, b)
JOIN onceward.s ON hashtextextended(t.a, 0) = 1 AND t.b IN ('f(1)') WHERE EXISTS (SELECT FROM (VALUES (1)) need(t)) AND t.c::bit(48) IS NULL;
