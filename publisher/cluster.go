package publisher

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"
)

// ErrOtherCluster is matched by every [OtherClusterError].
var ErrOtherCluster = errors.New("another Kafka cluster")

// OtherClusterError: a broker of another cluster answered than the one that is
// written to. Nothing was written there.
type OtherClusterError struct {
	Known   string // [Config].Cluster, or the one that the publisher began with
	Met     string
	Address string // that answered
}

// Error implements error.
func (e *OtherClusterError) Error() string {
	return fmt.Sprintf("%s is of Kafka cluster %s, not of %s", e.Address, e.Met, e.Known)
}

// Is reports whether target is [ErrOtherCluster].
func (e *OtherClusterError) Is(target error) bool { return target == ErrOtherCluster }

// Cluster returns the id of the cluster that the publisher writes to; empty when
// it has none.
func (p *Publisher) Cluster() string { return p.settings.Cluster }

// Cluster returns the id of the cluster that the producer writes to; empty when
// it has none.
func (t *Transactional) Cluster() string { return t.settings.Cluster }

// same compares what a broker says of its cluster with what is known. A cluster
// without an id is never another one. It is pure but for what it learns.
func (b *brokers) same(id string) error {
	switch {
	case id == "" || id == b.cluster:
	case b.cluster == "":
		b.cluster = id
	default:
		return &OtherClusterError{Known: b.cluster, Met: id, Address: b.Address}
	}
	return nil
}

// identify asks a broker for its cluster.
func (b *brokers) identify(conn *sarama.Broker) (*sarama.DescribeClusterResponse, error) {
	response, err := conn.DescribeCluster(sarama.NewDescribeClusterRequest(b.Config.Version))
	if err != nil {
		return nil, err
	}
	if response.Err != sarama.ErrNoError {
		return nil, response.Err
	}
	return response, b.same(response.ClusterID)
}

// vet asks on a connection of its own whether an address leads to the cluster that
// is written to: behind a name or an address another one may stand since the last
// connection, and it would take what is sent. It is asked before each connection
// that records are written on.
func vet(s *settings, w *wire, address string) error {
	if s.Cluster == "" {
		return nil
	}
	config := lookupConfig(s, w)
	config.Net.ReadTimeout = lookupTimeout // a broker that hangs keeps what is to be written there
	b := newBrokers(config, s)
	b.Seeds, b.Learned = []string{address}, nil
	defer b.Close()
	if err := b.Ask(func(conn *sarama.Broker) error {
		_, err := b.identify(conn)
		return err
	}); err != nil {
		return fmt.Errorf("ask %s for its cluster: %w", address, err)
	}
	return nil
}
