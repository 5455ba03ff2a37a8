// Package replay publishes events again, or those that no relay publishes by itself.
//
// An [Order] is planned, which finds and counts the events in one snapshot of the
// database, asks Kafka whether a topic is compacted, and changes nothing. Its plan is then
// requested: orders are written in small transactions, paced and in the order of the rows.
// The end of the context comes between two of them, so that what was asked for is known
// and another order goes on from there; a lost answer is asked for again under the same
// ids, so that nothing is ordered twice.
//
// The relay carries the orders out, as rows of its stream.
package replay
