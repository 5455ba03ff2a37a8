package produce

import (
	"net"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/wire"
)

// courier carries produce requests to one broker, one at a time: each waits for
// its answer, while what comes for the broker grows into the next one. Encoding and
// compression happen here, beside the loop. It ends with its connection.
type courier struct {
	link     Link
	down     <-chan struct{} // ends pauses
	requests chan carried    // of capacity 1
	answers  chan<- answer

	// The loop's.
	lanes []*lane // that are to be sent there
	busy  bool
	gone  bool // dismissed
}

// carried is a request on its way through the courier.
type carried struct {
	lanes []*lane
	body  *sarama.ProduceRequest
}

// answer is what became of a request: a response, or an error that leaves it open
// whether the broker has seen the request.
type answer struct {
	courier  *courier
	lanes    []*lane
	response *sarama.ProduceResponse
	err      error

	throttled time.Time // until when the broker takes nothing; zero when it has never asked for that
}

// run works until the loop closes the requests. Each of them is answered.
func (c *courier) run() {
	defer c.link.Close()
	var throttled time.Time
	for r := range c.requests {
		a := answer{courier: c, lanes: r.lanes}
		if !wire.Pause(time.Until(throttled), c.down) {
			a.err = net.ErrClosed // sarama would go on with the pause, whatever becomes of the network
			c.answers <- a
			continue
		}
		a.err = c.link.Do(func(conn *sarama.Broker) (err error) {
			a.response, err = conn.Produce(r.body)
			return err
		})
		if a.err == nil && a.response.ThrottleTime > 0 {
			throttled = time.Now().Add(a.response.ThrottleTime)
		}
		a.throttled = throttled
		c.answers <- a
	}
}
