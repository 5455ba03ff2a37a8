// Package streams receives from Redis Streams with a consumer group: entries are pending until
// they are acknowledged, and those that a dead receiver left are taken over. Each event has its
// effect once, however many entries it has, and one that fails for good is a dead letter of the group.
package streams
