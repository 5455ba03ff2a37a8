// Package binding is to what a relay is bound: the system of its database and the Kafka
// cluster that it publishes to. An operator moves a binding when a database was restored or
// moved, or another cluster takes the place of one, and ends it when a relay is gone for
// good.
//
// Each order is planned, which counts what it changes, changes nothing and says what is to
// be confirmed, and then carried out in one transaction. What cannot be proved afterwards
// counts as unpublished: it becomes a gap.
package binding
