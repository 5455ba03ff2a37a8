// Package wire ends all that a client waits for at once: its connections, and its pauses
// between tries. Clients that are given no context, as sarama's transactions, need it.
//
// A [Wire] owns the connections that it has made until they are closed. After
// [Wire.Cut] it makes none any more.
package wire
