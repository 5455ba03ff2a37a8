// Package completed says by what an event that a group has applied is remembered outside
// the database: a key, and a value that is another one as soon as anything is that the
// database's answer would depend on. An event that was handled without a claim has a value too,
// which is none of an applied one.
//
// The invariant: two values are equal only if group, event, content, history of the
// database and registration of the class are, the group was not made to forget a claim
// in between, and both stand for a claim, or neither does.
package completed
