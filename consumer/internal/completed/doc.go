// Package completed says by what an event that a group has applied is remembered outside
// the database: a key, and a value that is another one as soon as anything is that the
// database's answer would depend on.
//
// The invariant: two values are equal only if group, event, content, history of the
// database and registration of the class are, and the group was not made to forget a claim
// in between.
package completed
