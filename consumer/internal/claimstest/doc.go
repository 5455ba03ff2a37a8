// Package claimstest makes databases for the tests of those that look after claims:
// retention, audit, and what a consumer expects of both. A [Database] belongs to its
// test, which closes all with it; nothing of it may be used by two goroutines.
package claimstest
