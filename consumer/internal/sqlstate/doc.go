// Package sqlstate says what the SQLSTATE of an error means to a consumer: whose failure
// it is, and whether it passes. It is pure.
//
// The codes are those of PostgreSQL's documentation, appendix A; they reach us from pgx
// and from lib/pq alike.
package sqlstate
