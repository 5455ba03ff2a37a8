// Package redisfast remembers in Redis which events a consumer group has applied, so that most
// duplicates need no transaction of PostgreSQL.
//
//	fast, err := redisfast.New(redisfast.Config{Redis: redis.UniversalOptions{Addrs: []string{"redis:6379"}}})
//	defer fast.Close()
//	in, err := consumer.New(ctx, consumer.Config{Group: "billing", DB: pool, Completed: fast})
//
// # Guarantee
//
// It only saves work. PostgreSQL alone decides that an event is new; Redis can say no more than
// "this one was applied, for sure". Redis may be empty, slow, full or gone, be put back to an old
// dump, or be flushed while all runs: no effect is lost, and none is made twice. For that
//
//   - an entry is written after the COMMIT of its effect was acknowledged, never before;
//   - its value says of which content it is, in which history of the database the effect was
//     committed (system identifier, timeline, start of the server), to which tables and to which
//     registration of its class it belongs, and how many claims an operator has made the group
//     forget. Entries with another value are as if they were not there;
//   - it goes no later than one window of its class after the event was applied;
//   - it is asked only within a session of package saramagroup (or of whoever calls
//     consumer.Router.BeginProgress), whose offsets follow a check of the database's history;
//   - late and future events, classes by arrival, replays and repairs are PostgreSQL's alone,
//     and so are redrives, consumer.Do and consumer.Processor.Claim.
//
// Handlers of consumer.Router.AtLeastOnce with consumer.Remembered are the exception. They leave no claim, so that this
// is the only memory of them: nothing is lost either, and what Redis does not know is handled again.
// Their entries have values of their own, late and future events and classes by arrival included.
//
// What Redis itself must not do is answer with what nobody has written: two programs that write the
// same keys otherwise than by this package are not protected from one another.
//
// # Cost
//
// One pipelined look-up before each delivery, which is one for a batch, and one pipelined write
// behind it, of what was applied. An entry takes about 150 bytes of Redis. Config.Timeout bounds
// each round trip; after five failures in a row Redis is left alone for a second, and then one
// question tries it. go-redis writes a line to stderr for each connection that it cannot make.
//
// # Ownership
//
// A [Cache] owns its connections; [Cache.Close] ends them. It may serve any number of groups
// and processors, at the same time.
package redisfast
