package publisher

// Matches reports whether the pattern selects events with these columns. The
// first route whose Match does decides on an event.
func (m Match) Matches(namespace, aggregateType, eventType string) bool {
	return m.matches(origin{namespace, aggregateType, eventType})
}
