// Package kafkaserver starts a real Apache Kafka for the local stack and the
// end-to-end tests: one broker or three, KRaft, on free loopback ports.
//
// # Guarantee
//
// When [Start] returns, every broker has answered a metadata request that
// names all of them. When it fails, nothing is left running, a temporary
// folder is gone, and the error holds the end of the broker's log.
//
// # States
//
// Each broker of a [Cluster] is up after Start, down after [Cluster.Kill] or
// [Cluster.StopBroker], and up again after [Cluster.StartBroker] on the same
// ports with the same data. [Cluster.Stop] ends all.
//
// # Who owns what
//
// The cluster owns its folder: Options.Dir, which is kept, or a temporary one,
// which Stop removes. Every broker is a controller, too, so with three of them
// one may be down. Clients have a listener of their own ([Options.Advertise]
// puts a proxy before it); brokers talk to one another on others, which a proxy's
// faults therefore leave alone.
//
// The jars come from Maven: [Fetch] copies what pom.xml names into the cache,
// once, and Start only looks there.
//
// # Failures
//
// A program that dies takes its brokers along: at once on Linux, not at all on
// other systems (see the package process). Nothing here retries; a broker that
// takes longer than three minutes to start has failed.
package kafkaserver
