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
//   - Strings that differ in white space at their ends only are one, and so are 1, 1.0
//     and 10e-1. With [NFC] or [NFKC] more is.
//   - What is not among Config.Fields never tells two events apart.
//
// What is known of an event beside its claim does not go with the window, and is taken for all
// that say the same. So use it with Tx and Batch handlers, and with a lone Do:
//
//   - A Fence, or a DoNamed, in a Func handler is there already when the same is said again, for
//     as long as its row is kept (two windows and a day): the second event ends without its
//     effect. A provider that is given Call.Key does the same for as long as it remembers it.
//   - A dead letter stands for all that say the same: until it is redriven they are dead-lettered
//     without a letter of their own, and for 30 days after that they are duplicates. Redrive or
//     discard such letters at once, and let the class's handler return errors only for what is
//     worth that.
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
