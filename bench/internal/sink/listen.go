package sink

import (
	"context"
	"fmt"
	"time"
)

// Listen reads the topic from its present end on until ctx ends, which is no error, and tells
// heard the number of each event at the moment when a consumer of committed records has it.
// ready is called once the reader is there. It must not run beside [Topic.Read].
func (t *Topic) Listen(ctx context.Context, ready func(), heard func(number int, at time.Time)) error {
	ends, err := t.ends(ctx)
	if err != nil {
		return err
	}
	from := t.at
	t.at = ends
	client, err := t.consumer()
	t.at = from // what is heard here is checked by Read, later
	if err != nil {
		return err
	}
	defer client.Close()
	ready()
	for {
		fetches := client.PollFetches(ctx)
		now := time.Now()
		if ctx.Err() != nil {
			return nil // the caller has heard enough
		}
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("listen to topic %s: %w", t.Name, err)
		}
		for r := range fetches.RecordsAll() {
			number, err := t.Shape.Number(r.Value)
			if err != nil {
				return err
			}
			heard(number, now)
		}
	}
}
