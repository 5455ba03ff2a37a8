package stream

import "github.com/onceward/onceward/cdc"

// reorder is [fault.Reorder] on a batch.
func reorder(batch []cdc.Item) {
	for i := 1; i < len(batch); i += 2 {
		if batch[i-1].Row != nil && batch[i].Row != nil {
			batch[i-1].Row, batch[i].Row = batch[i].Row, batch[i-1].Row
		}
	}
}

// alter is [fault.Alter] on a batch.
func alter(batch []cdc.Item) {
	for i := range batch {
		if batch[i].Row != nil && batch[i].Row.Seq%100 == 0 {
			batch[i].Row.Payload = []byte(`{}`)
		}
	}
}
