package consumer

import (
	"context"
	"time"
)

// Peek is what can be told of a record before it is handled.
type Peek struct {
	// EventTime is the time by which the event counts towards stream time: that
	// inside its key, or of now when its class is keyed by arrival; zero for a
	// malformed record and for a time that has not come yet.
	EventTime time.Time
	// Batch is not nil when the record's event shares a transaction with others,
	// see [Router.HandleRecords].
	Batch *BatchOptions
}

// Peek looks at a record. It asks nobody.
func (r *Router) Peek(rec Record) Peek {
	ev, err := r.processor.parse(rec)
	if err != nil {
		return Peek{}
	}
	p := Peek{EventTime: r.processor.timeOf(&ev)}
	r.processor.reads.Raise(rec.Source.Topic, rec.Source.Partition, p.EventTime)
	if h := r.find(ev.Type); h != nil {
		p.Batch = h.batch
	}
	return p
}

// HandleRecords delivers the events of several records of one partition, in
// their order, as [Router.HandleBatch] does; each must be one whose [Peek] has a
// Batch.
func (r *Router) HandleRecords(ctx context.Context, recs []Record) []Delivery {
	evs := make([]Event, len(recs))
	for i, rec := range recs {
		// One that cannot be read is refused by HandleBatch for want of a key.
		evs[i], _ = r.processor.parse(rec)
	}
	return r.HandleBatch(ctx, evs)
}
