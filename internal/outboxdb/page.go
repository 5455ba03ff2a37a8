package outboxdb

// Ask says how many rows the next page asks for, of which the last one had so many; 0: there was none. A page takes
// rows for as long as they fit into its bytes, and PostgreSQL looks at the size of each that is asked for, which of
// large headers is to read them: so it asks for not many more than may fit, and for more where all did.
func Ask(last, most int) int {
	if last == 0 {
		last = 8
	}
	return min(max(2*last, 4), most)
}
