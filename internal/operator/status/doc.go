// Package status is how a producer's database is: its relays, partitions, dead letters,
// gaps, what is held and which topics were made anew, in one report, with the problems
// that an operator should act on and what to do about each.
//
// It only reads. It stands above the rooms that it asks.
package status
