package relay

const table = "onceward.t"

var (
	_ = "SELECT pg_catalog.count(*) FROM " + table + " WHERE a = now() AND b = 'count(*)'"
	_ = "look at it (it is late), then UPDATE your copy (it)"
	_ = `CREATE TABLE x (LIKE y)`
)
