package publisher

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/kafkaconf"
	"github.com/onceward/onceward/publisher/internal/produce"
)

// Topic settings: what bounds a batch, and what an acknowledgement is worth.
const (
	limitName     = "max.message.bytes"
	minInSyncName = "min.insync.replicas"
	uncleanName   = "unclean.leader.election.enable"
)

// brokers asks the cluster about itself on one connection of its own, so that
// a look-up does not wait behind produce requests. Only one goroutine uses it.
// Every call is bounded by the network timeouts, and by the wire's cut.
type brokers struct {
	produce.Any
	cluster string // the id of the one that is asked; empty: not known yet, or it has none
}

func newBrokers(config *sarama.Config, s *settings) *brokers {
	b := &brokers{Any: produce.Any{Config: config, Seeds: s.Brokers, Learned: slices.Clone(s.told)}, cluster: s.Cluster}
	b.Final = func(err error) bool { return errors.Is(err, ErrOtherCluster) }
	b.Explain = func(address string, err error) error {
		if reason := b.distrust(address); reason != nil {
			err = reason
		}
		return fmt.Errorf("%s: %w%s", address, err, b.mismatch(err))
	}
	return b
}

// mismatch is a hint for a connection that was closed without a word: by a broker
// that speaks TLS to one that does not, or the other way round.
func (b *brokers) mismatch(err error) string {
	var notTLS tls.RecordHeaderError
	switch {
	case errors.As(err, &notTLS), errors.Is(err, io.EOF) && b.Config.Net.TLS.Enable:
		return " (the relay speaks TLS; is this a listener without it?)"
	case errors.Is(err, io.EOF):
		return " (the relay speaks plaintext; does this listener want TLS, or SASL?)"
	}
	return ""
}

// distrust returns what TLS has against a broker, or nil. After a handshake that
// fails, two goroutines of sarama have an error each, the reason or that the
// connection was closed for it, and which of them is returned is left to chance.
func (b *brokers) distrust(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil || !b.Config.Net.TLS.Enable {
		return nil
	}
	raw, err := b.Config.Net.Proxy.Dialer.Dial("tcp", address)
	if err != nil {
		return nil // not TLS
	}
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(time.Now().Add(kafkaconf.DialTimeout))
	config := b.Config.Net.TLS.Config.Clone()
	if config.ServerName == "" {
		config.ServerName = host
	}
	err = tls.Client(raw, config).Handshake() //nolint:noctx // bounded by the deadline, and by the wire's cut
	if err != nil && classify(err) == classRelay {
		return err
	}
	return nil
}

// reach checks that some broker of the right cluster answers, and learns the
// others' addresses.
func (b *brokers) reach() error {
	return b.Ask(func(conn *sarama.Broker) error {
		response, err := b.identify(conn)
		if err != nil {
			return err
		}
		b.Learned = b.Learned[:0]
		for _, broker := range response.Brokers {
			b.Learned = append(b.Learned, net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port))))
		}
		return nil
	})
}

// describe returns the metadata of the named topics, with what this principal
// may do to them.
func (b *brokers) describe(names []string) (*sarama.MetadataResponse, error) {
	request := sarama.NewMetadataRequest(b.Config.Version, names)
	request.IncludeTopicAuthorizedOperations = true
	return b.metadata(request)
}

// locate returns the metadata of the named topics, for who leads their partitions.
func (b *brokers) locate(topics []string) (*sarama.MetadataResponse, error) {
	return b.metadata(sarama.NewMetadataRequest(b.Config.Version, topics))
}

func (b *brokers) metadata(request *sarama.MetadataRequest) (*sarama.MetadataResponse, error) {
	request.AllowAutoTopicCreation = false
	var response *sarama.MetadataResponse
	err := b.Ask(func(conn *sarama.Broker) (err error) {
		if response, err = conn.GetMetadata(request); err != nil || response.ClusterID == nil {
			return err
		}
		return b.same(*response.ClusterID)
	})
	if err != nil {
		return nil, err
	}
	b.Learned = b.Learned[:0]
	for _, broker := range response.Brokers {
		b.Learned = append(b.Learned, broker.Addr())
	}
	return response, nil
}

// limits returns max.message.bytes of those topics whose settings may be read,
// and the error for one of the others.
func (b *brokers) limits(names []string) (map[string]int, error) {
	configs, err := b.configs(names, limitName)
	limits := make(map[string]int, len(configs))
	for name, entries := range configs {
		if n, err := strconv.Atoi(entries[limitName]); err == nil {
			limits[name] = n
		}
	}
	return limits, err
}

// configs returns the named settings of those topics whose settings may be
// read, and the error for one of the others.
func (b *brokers) configs(names []string, settings ...string) (map[string]map[string]string, error) {
	request := &sarama.DescribeConfigsRequest{Version: 4}
	for _, name := range names {
		request.Resources = append(request.Resources, &sarama.ConfigResource{
			Type: sarama.TopicResource, Name: name, ConfigNames: settings,
		})
	}
	configs := make(map[string]map[string]string, len(names))
	var denied error
	err := b.Ask(func(conn *sarama.Broker) error {
		response, err := conn.DescribeConfigs(request)
		if err != nil {
			return err
		}
		for _, resource := range response.Resources {
			if resource.ErrorCode != 0 {
				denied = sarama.KError(resource.ErrorCode)
				continue
			}
			entries := make(map[string]string, len(settings))
			for _, entry := range resource.Configs {
				entries[entry.Name] = entry.Value
			}
			configs[resource.Name] = entries
		}
		return nil
	})
	return configs, errors.Join(err, denied)
}

// create makes topics with one request to the controller, and returns why those
// were not made that were not, as the controller says; an error where it says
// nothing.
func (b *brokers) create(details map[string]*sarama.TopicDetail) (map[string]error, error) {
	// For its controller; without a name it would be all topics.
	cluster, err := b.describe(slices.Collect(maps.Keys(details))[:1])
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(cluster.Brokers,
		func(broker *sarama.Broker) bool { return broker.ID() == cluster.ControllerID })
	if i < 0 {
		return nil, errors.New("the cluster has no controller at the moment")
	}
	conn := sarama.NewBroker(cluster.Brokers[i].Addr())
	if err := conn.Open(b.Config); err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if _, err := b.identify(conn); err != nil {
		return nil, err
	}
	response, err := conn.CreateTopics(sarama.NewCreateTopicsRequest(b.Config.Version, details, 10*time.Second, false))
	if err != nil {
		return nil, err
	}
	failures := make(map[string]error)
	for name, failure := range response.TopicErrors {
		if failure.Err != sarama.ErrNoError {
			failures[name] = failure
		}
	}
	return failures, nil
}
