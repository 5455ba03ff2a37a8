package migrations

// What Up makes.
const (
	DaysBack  = daysBack
	DaysAhead = daysAhead
)
