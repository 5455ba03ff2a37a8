// Package webhook receives webhooks over HTTP and makes the effect of each happen once,
// however often its sender delivers it.
//
// # Guarantee
//
// For one id of a sender, within the window of its class, one transaction of the
// receiver's group commits, and every delivery that is acknowledged gets the same
// answer, also those that come at the same time; but that of a letter is another one before
// and after its redrive. Who has no secret of the sender changes nothing: what is not signed
// is refused, and of a body no more than Config.MaxBody is read before.
//
// # Two modes
//
//   - Enqueue (Config.Do is nil; the recommended one): the event goes into the outbox,
//     in the transaction of its claim, and a relay publishes it. The answer does not wait
//     for what becomes of it: senders wait 5 to 20 seconds. The database has both sides
//     of Onceward.
//   - Do: the answer is the result of the work. A second delivery waits for the first one
//     up to LockTimeout (5 s) and gets its answer; only then it gets 503.
//
// # Answers
//
//	200  done, by this delivery or an earlier one: the same body each time. One of another
//	     program of the group, which has left no [Answer], is done too: the body names event
//	     and outcome, and the log says so
//	202  given up: the event is a dead letter of the group, and a redrive has it handled
//	400  signed, and no event of this sender
//	400, 401  the signature is missing, wrong or too old, as each sender expects it
//	405, 413  not a POST; a body longer than Config.MaxBody
//	409  the id is taken by an event with other content, or lies before the window
//	500  the handler has failed; deliver again
//	503  another delivery is at it, or the database is away; with Retry-After
//
// # Failures
//
// A failure of the handler, or of Enqueue's statement, is counted. Sender.Tries of them, or
// one that [consumer.DeadLetter] marks, make a dead letter of the event, which `outboxctl
// dead list --side consumer` shows. Fewer than a sender tries, because nobody hears of what
// it has given up.
//
// # What signatures say
//
// Stripe signs the time and a body with the event's id in it: a delivery that somebody has
// recorded is refused after five minutes, and a duplicate until then. Shopify and GitHub sign
// the body alone: no time, and no header. Their deduplication window is the protection, against
// the same delivery: whoever has recorded one and can send it under another id makes another
// event of it. So receive over TLS only, and believe of a header what the body says too.
//
// # Ownership
//
// A [Receiver] is safe for concurrent use, starts no goroutine of its own, and goes on with
// a delivery whose sender has hung up, so that its next one finds the answer. Timeouts of the
// connection are those of the [http.Server].
package webhook
