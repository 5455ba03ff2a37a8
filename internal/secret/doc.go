// Package secret reads secrets, and says what is wrong with one, or with a
// connection made from one, without repeating what may be the secret itself.
//
// A connection string that cannot be parsed is never shown, not even in part: which
// part of it is the password is a guess, and the driver's own guess has been wrong.
// Of one that can, addresses and names are shown when they look like some; a
// password with a character that should have been escaped ends up in the host or in
// the database's name. The same mistakes put a secret where the name of its file
// belongs, or behind a command as an argument.
//
// The package holds no state and starts nothing.
package secret
