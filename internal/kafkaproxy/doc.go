// Package kafkaproxy puts a network with faults between clients and servers: a
// TCP proxy before each broker of a cluster, or before PostgreSQL.
//
// # Guarantee
//
// Without a fault, bytes pass unchanged and in order, and the end of one side
// ends the other. A fault says what it did: [Injected.Hits] counts the requests
// that it met, and [Injected.Deliver] returns once the broker has answered what
// was held back. Nothing is random here; the caller draws the dice.
//
// # Faults
//
// A [Link] is the way to one server. It can be cut, refused, and shaped in each
// direction ([Traffic]): stalled like a network that loses every packet, slow,
// narrow, in small pieces.
//
// A [Fault] knows Kafka's requests by their api key, whichever broker they go
// to: held back, with the reply lost after the broker has done its work, lost
// before it, or delivered late, when the client has long gone on over another
// connection.
//
// # Who owns what
//
// The [Network] owns listeners and connections, and waits for its goroutines in
// [Network.Close]: one per listener, two per connection. Everything is safe for
// concurrent use.
//
// # Limits
//
// Requests are recognised on connections in plain text only: no TLS, and no
// SASL exchange without Kafka's framing (SaslHandshake version 0). The format is
// that of the Kafka protocol guide, "Protocol Primitives" and "Headers".
package kafkaproxy
