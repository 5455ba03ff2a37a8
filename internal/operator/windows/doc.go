// Package windows is the deduplication windows of consumer groups, as an operator looks
// at them and changes them.
//
// A class is a pattern of event types of one group. Its window says for how long after
// its event time a copy is known, its floor below which event time claims may be gone.
// [List] says what holds floors back, [Advise] which windows are too small. What changes
// a class is planned first, which changes nothing, and then carried out: a new setting, a
// floor that is raised to where claims are kept, a group that is retired, and a new group
// that claims the events of an old topic. A floor is never lowered.
//
// It reads and changes what the consumer's migrations made; floors move by themselves in
// package consumer, which owns them.
package windows
