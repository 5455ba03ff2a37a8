package produce

import (
	"errors"
	"slices"

	"github.com/IBM/sarama"
)

// Any is a connection to whichever of several addresses answers, made when it is
// needed. One goroutine uses it.
type Any struct {
	Config  *sarama.Config
	Seeds   []string
	Learned []string // that the cluster has told of, for when the seeds are gone
	Address string   // of the connection, or of the last one
	// Final reports whether no other address is asked after an error.
	Final func(error) bool
	// Explain makes what is reported of the error of an address.
	Explain func(address string, err error) error

	conn   *sarama.Broker
	passed map[string]int // addresses that did not answer, or were of no use: when, counted from 1
	passes int
}

// Ask runs fn on the open connection, and when that fails on a new one to each
// known address in turn. It is bounded by the network's timeouts of each.
func (a *Any) Ask(fn func(*sarama.Broker) error) error {
	last := ""
	if a.conn != nil {
		err := fn(a.conn)
		if err == nil || a.Final(err) {
			return err
		}
		a.Close() // idle connections are closed by brokers; say so only if new ones fail
		last = a.Address
	}
	addresses := a.addresses()
	if i := slices.Index(addresses, last); i >= 0 { // it may hang
		addresses = append(slices.Delete(addresses, i, i+1), last)
	}
	var failures []error
	for _, address := range addresses {
		err := a.try(address, fn)
		if err == nil || a.Final(err) {
			return err
		}
		a.pass(address)
		failures = append(failures, a.Explain(address, err))
	}
	return errors.Join(failures...)
}

// try runs fn on a new connection, which stays when it has no error.
func (a *Any) try(address string, fn func(*sarama.Broker) error) error {
	conn, err := Open(a.Config, address)
	if err != nil {
		return err
	}
	a.conn, a.Address = conn, address
	if err = fn(conn); err != nil {
		a.Close()
	}
	return err
}

// Close ends the connection, if there is one.
func (a *Any) Close() {
	if a.conn != nil {
		_ = a.conn.Close() // the only error is that it was not open
		a.conn = nil
	}
}

// Elsewhere has the next question asked of another address, if there is one: what
// the last one answered was of no use.
func (a *Any) Elsewhere() {
	a.Close()
	a.pass(a.Address)
}

// pass has all others asked before an address.
func (a *Any) pass(address string) {
	if a.passed == nil {
		a.passed = make(map[string]int)
	}
	a.passes++
	a.passed[address] = a.passes
}

// addresses returns those that are known, each once, in the order in which they are to
// be asked: behind those that always answered are the others, the last one last.
func (a *Any) addresses() []string {
	var known []string
	for _, address := range slices.Concat(a.Seeds, a.Learned) {
		if !slices.Contains(known, address) {
			known = append(known, address)
		}
	}
	slices.SortStableFunc(known, func(one, other string) int { return a.passed[one] - a.passed[other] })
	return known
}
