// Package fault breaks the relay on purpose: end-to-end tests show with it that
// their checks find what they look for, and that a process may die anywhere.
//
// Two environment variables of a process built with the tag onceward_defects say
// what is wrong with it: DEFECT names a [Defect], by which it breaks one promise,
// and CRASH_AT a [Place] at which it kills itself, as name or name:n for the nth
// time that it comes by. Without the tag neither is read, [Is] is the constant
// false and [Crash] is empty, so that the compiler leaves out what they guard: a
// production binary has nothing of it.
//
// Packages cdc, publisher and relay ask; what a defect does stands where it is
// done.
package fault
