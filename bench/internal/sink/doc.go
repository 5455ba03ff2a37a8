// Package sink is the end of the way that the benchmark measures: the topics that the sides
// write, what events look like, and the check that a topic holds what was written.
//
// Topics stamp records with the time at which the broker appended them, so that the length of a
// run is read afterwards from the topic itself, and nobody reads beside the sides while they are
// measured. The number of records in a batch is counted then, too.
package sink
