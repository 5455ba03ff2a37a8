// Package relays is the relays of a producer's database, with their slots and their
// processes: how each one is, what an operator should know of it, and the commands to
// pause and resume it or some of its routes, and to leave out an event.
//
// A relay is known by its row of state and by what its processes say of themselves. One
// that has not begun has processes only; a slot that no relay knows is listed when its
// name says that it is Onceward's. A pause is kept in the database until it is taken
// back, and the relay carries it out within a second or two. An event that is to be left
// out is told until the relay comes to it; until then the order can be taken back.
package relays
