package cdc

// The defects that a test can inject into a reader built with the tag
// onceward_defects, each the classic way to break one promise.
const (
	// defectMute sends no status updates while the queue is full.
	defectMute = "mute-when-full"
	// defectByPlace looks for the columns where the table had them first.
	defectByPlace = "columns-by-place"
)

// placed applies defectByPlace to the layout of a table that was described
// before.
func placed(first, now *layout) *layout {
	if defect != defectByPlace || first == nil || now == nil {
		return now
	}
	l := *now
	l.fields = make([]field, len(now.fields))
	for i := range l.fields {
		l.fields[i] = fieldNone
		if i < len(first.fields) {
			l.fields[i] = first.fields[i]
		}
	}
	return &l
}
