// Package fingerprint tells events of a source that gives them no key: by what they
// say, and by when they arrive. It is the weakest way to know a copy, for when there is
// none better.
//
// # Guarantee
//
// Of messages that are alike in the chosen fields and arrive within one window of each
// other, in whichever process, one has its effect; the others are duplicates. Of two that
// differ in a chosen field each has its own.
//
// [Source.Event] makes events with one key, a hash of their normal form, of messages that
// are alike. It is claimed like every key that carries no time ([consumer.ByArrival]):
// under two ids, at the ends of buckets as long as the window, so that copies on both
// sides of a bucket's edge meet, also when both are under way.
//
// # What it confuses
//
// A fingerprint knows no intent. Two events that say the same within a window are taken
// for one, and the second is acknowledged as a duplicate, without its effect and without
// a letter: the second cup of coffee at the same price, a meter that shows the same twice.
// Where that happens, choose a field that differs (a number, a time by the source's own
// clock), a shorter window, or have the source give a key.
//
//   - Between one window and two after the first, chance decides whether a copy is one.
//     Behind two it is new.
//   - A message arrives when the group takes it. What lies in Kafka while the group stands still, or
//     lags, arrives at once: what says the same in it is one, however far apart it was said; and a copy
//     that is read two windows after the first is new, though both came at once.
//   - Strings that differ in white space at their ends only are one, and so are 1, 1.0
//     and 10e-1. With [NFC] or [NFKC] more is.
//   - What is not among Config.Fields never tells two events apart.
//
// Nothing that is known of an event outlives its window, because [Window] says that keys are
// made of content ([consumer.Class].Content):
//
//   - Handlers of Router.Func are refused, and a lone Fence, because the rows by which they know
//     an effect, and a provider that is given Call.Key, remember for longer. Use Router.Tx and
//     Batch, or a lone Do. For an effect outside let the handler enqueue an event with a key of its own
//     (outbox.NewKey), which a Func handler of another type, or group, takes.
//   - A dead letter stands for what would have met its claim: within the window what says the
//     same is dead-lettered with it, without a letter of its own; two windows later it is
//     another event, which is applied, or has a letter of its own. Each letter is redriven by
//     itself, and is claimed where it had arrived: the redrive of an old one takes nothing from a new event. Of the
//     record itself a letter says what became of it for as long as it is kept.
//
// And it tells apart what a person would not: 1 and "1", null and nothing, lists in
// another order, "Main St" and "Main Street", a time in two zones. Such copies have an
// effect each.
//
// # Failures
//
// A message that is not JSON in UTF-8, has one name twice in an object or half of a
// character in a string, or lacks a chosen field, has no fingerprint: from a topic it is a
// dead letter "malformed". A change of Config makes other keys: a copy on the other side
// of the change has an effect of its own.
//
// Everything is pure, and safe for concurrent use.
//
//	fingerprint.go   what is chosen, and the event of it
//	normalise.go     the one text of all that is the same
package fingerprint
