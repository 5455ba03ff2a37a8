// Package claims is what consumer groups did with one event: claims, failed tries, fences,
// dead letters, and what operators did about them; and how a group is made to forget it.
//
// A claim is kept under the event's own id or, of a late event and of a class that is
// keyed by arrival, under ids made of it and of the time of arrival: all that have a
// partition are looked for. What may be hidden is said in a note, so that the absence of a
// claim is not taken for more than it is worth.
//
// Forgetting is planned, which changes nothing, and carried out by a statement that
// refuses where an effect of the event has begun since.
package claims
