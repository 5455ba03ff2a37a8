package publisher

import (
	"time"

	"github.com/IBM/sarama"
)

// link is a connection to one address, made when it is needed and after every
// error made anew. One goroutine uses it: sarama holds a lock of the connection
// while it waits for an answer.
type link struct {
	config  *sarama.Config
	address string
	conn    *sarama.Broker
}

// do runs ask on the connection. It is bounded by the network's timeouts, and by
// the wire's cut.
func (l *link) do(ask func(*sarama.Broker) error) error {
	if l.conn == nil {
		conn, err := open(l.config, l.address)
		if err != nil {
			return err
		}
		l.conn = conn
	}
	err := ask(l.conn)
	if err != nil {
		l.close() // an answer may still come, to another question
	}
	return err
}

func (l *link) close() {
	if l.conn != nil {
		_ = l.conn.Close() // the only error is that it was not open
		l.conn = nil
	}
}

// open connects, and logs in.
func open(config *sarama.Config, address string) (*sarama.Broker, error) {
	conn := sarama.NewBroker(address)
	if err := conn.Open(config); err != nil {
		return nil, err
	}
	if _, err := conn.Connected(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// courier carries produce requests to one broker, one at a time: each waits for
// its answer, while what comes for the broker grows into the next one. Encoding and
// compression happen here, beside the loop.
type courier struct {
	link     link
	wire     *wire
	requests chan carried // of capacity 1
	answers  chan<- answer

	// The loop's.
	lanes []*lane // that are to be sent there
	busy  bool
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
}

// run works until the loop closes the requests. Each of them is answered.
func (c *courier) run() {
	defer c.link.close()
	var throttled time.Time
	for r := range c.requests {
		a := answer{courier: c, lanes: r.lanes}
		if wait := time.Until(throttled); wait > 0 {
			c.wire.pause(wait) // sarama would wait too, but not end with the wire
		}
		a.err = c.link.do(func(conn *sarama.Broker) (err error) {
			a.response, err = conn.Produce(r.body)
			return err
		})
		if a.err == nil {
			throttled = time.Now().Add(a.response.ThrottleTime)
		}
		c.answers <- a
	}
}
