package fingerprint_test

import (
	"fmt"
	"time"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/fingerprint"
	"github.com/onceward/onceward/record"
)

// A gateway sends readings without a key, and each of them until it is told that it came.
func Example() {
	readings, err := fingerprint.New(fingerprint.Config{
		Namespace: "meters", Type: "ReadingTaken",
		Fields: []string{"/meter", "/at", "/value"}, // and not /sent, which every copy has its own of
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	config := consumer.Config{
		Classes: []consumer.Class{fingerprint.Window("ReadingTaken", time.Hour), {Pattern: "*", Window: consumer.DefaultWindow}},
		Readers: []consumer.RecordReader{func(rec consumer.Record) (record.Event, bool, error) {
			if rec.Source.Topic != "readings" {
				return record.Event{}, false, nil
			}
			return readings.Read(rec)
		}},
	}
	var keys []string
	for _, value := range []string{
		`{"meter": "m-1", "at": "10:00", "value": 20.50, "sent": 1}`, `{"sent":2,"value":20.5,"at":"10:00","meter":" m-1"}`,
	} {
		ev, _, err := config.Readers[0](consumer.Record{Source: record.Source{Topic: "readings"}, Key: []byte("gate-7"), Value: []byte(value)})
		fmt.Println(string(ev.Payload), err)
		keys = append(keys, ev.Key.String())
	}
	fmt.Println(keys[0] == keys[1])
	// Output:
	// {"at":"10:00","meter":"m-1","value":20.5} <nil>
	// {"at":"10:00","meter":"m-1","value":20.5} <nil>
	// true
}
