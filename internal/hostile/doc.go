// Package hostile finds what in schema onceward leans on a function, an
// operator or a domain that is neither PostgreSQL's nor ours.
//
// PostgreSQL looks a name up when a default, a CHECK, an index, a trigger, a
// policy, a rule or a view is made, along the search_path of who makes it, and
// keeps what it found. Whoever may create a function in a schema of that path can
// so have code of theirs run by everybody who writes or reads our tables: by the
// relay, or by a superuser who runs outboxctl. The migrations pin the path; this
// package is the proof that it held, also where somebody ran their text by hand.
//
// It is one query over the catalog, which every role may read. The answer is of
// the moment: what is made later is found by the next look.
package hostile
