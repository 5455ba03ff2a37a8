package relay

import "github.com/onceward/onceward/cdc"

// The defects that a test can inject into a relay built with the tag
// onceward_defects, each the classic way to break one promise.
const (
	// defectConfirmEarly confirms what was read, before Kafka acknowledged it.
	defectConfirmEarly = "confirm-early"
	// defectReorder hands neighbours over in the wrong order.
	defectReorder = "reorder"
	// defectAlter changes a payload on the way.
	defectAlter = "alter"
)

// spoil applies the defects that change a batch.
func spoil(batch []cdc.Item) {
	switch defect {
	case defectReorder:
		for i := 1; i < len(batch); i += 2 {
			if batch[i-1].Row != nil && batch[i].Row != nil {
				batch[i-1].Row, batch[i].Row = batch[i].Row, batch[i-1].Row
			}
		}
	case defectAlter:
		for i := range batch {
			if batch[i].Row != nil && batch[i].Row.Seq%100 == 0 {
				batch[i].Row.Payload = []byte(`{}`)
			}
		}
	}
}
