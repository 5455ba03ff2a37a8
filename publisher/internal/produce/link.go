package produce

import "github.com/IBM/sarama"

// Link is a connection to one address, made when it is needed and after every
// error made anew. One goroutine uses it: sarama holds a lock of the connection
// while it waits for an answer.
type Link struct {
	Config  *sarama.Config
	Address string

	conn *sarama.Broker
}

// Do runs ask on the connection. It is bounded by the network's timeouts.
func (l *Link) Do(ask func(*sarama.Broker) error) error {
	if l.conn == nil {
		conn, err := Open(l.Config, l.Address)
		if err != nil {
			return err
		}
		l.conn = conn
	}
	err := ask(l.conn)
	if err != nil {
		l.Close() // an answer may still come, to another question
	}
	return err
}

// Close ends the connection, if there is one.
func (l *Link) Close() {
	if l.conn != nil {
		_ = l.conn.Close() // the only error is that it was not open
		l.conn = nil
	}
}

// Open connects, and logs in.
func Open(config *sarama.Config, address string) (*sarama.Broker, error) {
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
