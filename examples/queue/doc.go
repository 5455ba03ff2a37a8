// Package queue receives from a queue in the manner of SQS: messages are leased, come
// again unless they are deleted, and may come more than once all the same. Each has its
// effect once, and one that fails for good is a dead letter of the group.
package queue
