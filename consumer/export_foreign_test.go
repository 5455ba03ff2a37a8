package consumer

// Reading returns a processor that reads records as a configuration says, without a
// database.
func Reading(classes []Class, readers ...RecordReader) (*Processor, error) {
	p := Disconnected()
	p.readers = readers
	var err error
	p.windows.classes, err = CheckClasses(classes)
	return p, err
}

// Parse is parse.
func (p *Processor) Parse(rec Record) (Event, error) { return p.parse(rec) }

// RecordOf is what a letter of the event holds.
func RecordOf(ev Event) Record { return ev.Record() }

// Bare is the event without the record that it was made of.
func Bare(ev Event) Event {
	ev.raw = nil
	return ev
}
