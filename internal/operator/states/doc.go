// Package states has the words that both databases, reports and commands have for the
// states of things, each once: of an event, a letter, a gap and a fence; the causes for
// which a group keeps a letter; the actions and their outcomes.
//
// They are what the tables hold and what a JSON document says, and never change.
package states
